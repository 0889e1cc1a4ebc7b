// waymark._core: the C ABI (plugin/waymark.h, plugin/waymark_wire.h) as Python classes, one per
// type of object. This header has what the files of the module share.
//
// The package waymark (plugin/python/waymark/) derives its public classes from these and adds what
// is plain Python: numpy dtypes, enums, exceptions. The module uses the C ABI only, none of
// Waymark's C++.
//
// The interpreter's lock (GIL): no callback ever takes it on the landing thread; callbacks of page
// sources take it on the publisher's thread and on the threads that fetch. Short calls on the
// engine's thread (a step's begin and end, a snapshot, a batch) keep it, which also serialises
// them; calls that copy more than kReleaseBytes, or wait, release it.
#ifndef WAYMARK_PLUGIN_PYTHON_CORE_H_
#define WAYMARK_PLUGIN_PYTHON_CORE_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/ids.h"
#include "plugin/abi/types.h"
#include "plugin/python/integer.h"
#include "plugin/waymark_wire.h"

namespace waymark_python {

namespace nb = nanobind;

// Copies of fewer bytes are over before another thread would have woken up.
inline constexpr std::uint64_t kReleaseBytes = 64 << 10;

inline const wm_api_v1& Api() {
  return *wm_get_api_v1();
}

// ---- errors ----

// Text that the library writes. Longer texts are cut off.
class Message {
 public:
  Message() = default;
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  [[nodiscard]] wm_message* get() { return &message_; }
  [[nodiscard]] const char* text() const { return text_; }

 private:
  char text_[1024] = {};
  wm_message message_ = {text_, sizeof(text_), 0};
};

// Raises the exception class of `status` (waymark/_errors.py). Needs the GIL.
[[noreturn]] void Raise(wm_status status, std::string_view text);
// The same for a status of the step path: the exception has rule, index, value and limit.
[[noreturn]] void RaiseCode(const wm_code& code);
inline void Check(const absl::Status& status) {
  if (status.ok()) return;
  Raise(static_cast<wm_status>(status.code()), {status.message().data(), status.message().size()});
}
// The value of a call, or its error as an exception.
template <typename T>
T Value(absl::StatusOr<T>&& of) {
  Check(of.status());
  return *std::move(of);
}
inline void Check(wm_status status, const Message& why) {
  if (status != WM_OK) Raise(status, why.text());
}
inline void Check(const wm_code& code, wm_status status) {
  if (status != WM_OK) RaiseCode(code);
}
// The same for a call that appends to the store's log. A full log is no error: the store loses its
// rows (capacity), and the engine continues.
inline void CheckAppended(const wm_code& code, wm_status status) {
  if (status == WM_RESOURCE_EXHAUSTED && code.rule == WM_RULE_LOG_FULL) return;
  Check(code, status);
}
// A text of any length: calls `write` with a wm_message, twice if the text is long.
template <typename Write>
nb::str Text(Write write) {
  std::string text(2048, '\0');
  for (;;) {
    wm_message message = {text.data(), text.size(), 0};
    const wm_status status = write(&message);
    if (status != WM_OK) Raise(status, message.text);
    if (message.size < text.size()) return nb::str(text.data(), message.size);
    text.resize(message.size + 256);
  }
}

// Takes the GIL by `take`. Once the interpreter goes down, CPython up to 3.13 ends a daemon
// thread that wants the GIL by unwinding its stack, which would end the process at the first
// noexcept frame. Such a thread stays here instead, as it does in CPython from 3.14 on.
template <typename Take>
void TakeGil(Take take) noexcept {
  try {
    take();
  } catch (...) {
    while (true)
      std::this_thread::sleep_for(std::chrono::hours(1));
  }
}

// Releases the GIL as long as it lives, if `wanted`. In destructors `wanted` is Alive(). No
// lock that the main thread may want is held when it ends.
class GilReleased {
 public:
  explicit GilReleased(bool wanted = true) : state_(wanted ? PyEval_SaveThread() : nullptr) {}
  ~GilReleased() {
    if (state_ != nullptr) TakeGil([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};
// Has the GIL as long as it lives: for callbacks of the library.
class GilTaken {
 public:
  GilTaken() {
    TakeGil([this] { state_ = PyGILState_Ensure(); });
  }
  ~GilTaken() { PyGILState_Release(state_); }
  GilTaken(const GilTaken&) = delete;
  GilTaken& operator=(const GilTaken&) = delete;

 private:
  PyGILState_STATE state_ = PyGILState_UNLOCKED;
};
// Whether the interpreter runs and is not being finalized.
inline bool Alive() {
  return Py_IsInitialized() != 0;
}

// Nanoseconds of a timeout in seconds; None: -1, for ever. InvalidArgument, naming the argument,
// below 0 and for NaN.
std::int64_t Nanoseconds(nb::handle timeout, const char* name = "timeout");
// For a wait whose timeout is over; the library's own text names one slice of it.
[[noreturn]] void RaiseDeadline(const char* what, nb::handle timeout);
// Calls `wait(ns)`, without the GIL and for a tenth of a second at a time, so that Ctrl-C works,
// until it returns another status than WM_DEADLINE_EXCEEDED or `timeout_ns` (-1: none) is over.
template <typename Wait>
wm_status WaitInSlices(std::int64_t timeout_ns, Wait wait) {
  constexpr std::int64_t kSlice = 100'000'000;
  for (;;) {
    const std::int64_t slice = timeout_ns < 0 || timeout_ns > kSlice ? kSlice : timeout_ns;
    wm_status status = WM_OK;
    {
      const GilReleased released;
      status = wait(slice);
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (timeout_ns >= 0) timeout_ns -= slice;
    if (status != WM_DEADLINE_EXCEEDED || timeout_ns == 0) return status;
  }
}

// ---- arguments ----

// An array of the caller: numpy, anything with the buffer protocol, DLPack (both kinds of
// capsules), __cuda_array_interface__, or a tensor with data_ptr(), shape, stride() and dtype.
// Never copied; `owner` and `lent` keep it.
struct Array {
  static constexpr int kMaxDims = 4;
  const void* data = nullptr;
  int dims = 0;
  std::int64_t shape[kMaxDims] = {};
  std::int64_t strides[kMaxDims] = {};  // bytes
  char kind = 'i';  // 'i', 'u', 'f', 'B' (bfloat16), or another letter for other types
  int item_bytes = 0;
  bool on_host = true;     // the host can read it
  bool on_device = false;  // a CUDA device can
  int device = 0;
  nb::object owner;
  nb::ndarray<nb::ro> lent;

  [[nodiscard]] bool contiguous() const;  // C order
};
// TypeError naming `name` when `object` is none of those.
Array ArrayOf(nb::handle object, const char* name);

// The memory of a numpy array of exactly one type in C order: the cheapest way to it.
class NumpyMemory {
 public:
  NumpyMemory() = default;
  ~NumpyMemory() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  NumpyMemory(const NumpyMemory&) = delete;
  NumpyMemory& operator=(const NumpyMemory&) = delete;
  // Takes the memory of `object` and returns true, if it has `dtype`, `dims` dimensions, C order
  // and aligned items. May be called until it has returned true.
  [[nodiscard]] bool Take(nb::handle object, nb::handle dtype, int dims);
  [[nodiscard]] const void* data() const { return view_.buf; }
  [[nodiscard]] std::size_t shape(int i) const { return static_cast<std::size_t>(view_.shape[i]); }

 private:
  Py_buffer view_ = {};
};
// numpy's dtype of that name; never released.
nb::handle NumpyType(const char* name);
// The numpy dtypes of arguments that are taken without a copy.
struct NumpyTypes {
  nb::handle int32 = NumpyType("int32");
  nb::handle int64 = NumpyType("int64");
  nb::handle uint8 = NumpyType("uint8");
  nb::handle boolean = NumpyType("bool");
  static const NumpyTypes& Get();
};

// Integers as a C array of T: a contiguous numpy array of T as it is, everything else (lists,
// tuples, other integer types, one integer) converted. OutOfRange for what does not fit.
template <typename T>
class Integers {
 public:
  Integers(nb::handle object, const char* name);
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return data_[i]; }
  // Whether data() is the numpy array's own memory, and changes with it.
  [[nodiscard]] bool lent() const { return memory_.data() != nullptr; }

 private:
  const T* data_ = nullptr;
  std::size_t size_ = 0;
  NumpyMemory memory_;
  Array array_;
  std::vector<T> converted_;
};
extern template class Integers<std::int32_t>;
// Ids of blocks.
class Blocks : public Integers<std::int32_t> {
 public:
  using Integers::Integers;
  [[nodiscard]] std::span<const waymark::BlockId> ids() const {
    static_assert(sizeof(waymark::BlockId) == sizeof(std::int32_t));
    return {reinterpret_cast<const waymark::BlockId*>(data()), size()};
  }
};
extern template class Integers<std::int64_t>;

// C-order bytes of a writable or read-only array, of any type and shape.
struct Bytes {
  std::uint8_t* data = nullptr;
  std::uint64_t size = 0;
  nb::ndarray<> writable;
  Array array;
};
Bytes WritableBytes(nb::handle object, const char* name);
Bytes ReadableBytes(nb::handle object, const char* name);

// The cudaStream_t of an int, None (the default stream), or an object with cuda_stream or
// __cuda_stream__(). TypeError for anything else.
void* StreamOf(nb::handle stream);

// Types of signatures, as stubs have them.
#define WAYMARK_ARRAY(type) "numpy.typing.NDArray[numpy." type "]"
#define WAYMARK_SHAPE "tuple[int, int, int, int, int, int, tuple[int, ...]]"
#define WAYMARK_RUNS "list[tuple[int, int, int, int, int]]"

// A read-only numpy array of T over memory that `owner` keeps.
template <typename T>
nb::object Lend(const T* data, std::initializer_list<std::size_t> shape, nb::handle owner) {
  static const T kNothing = {};
  return nb::cast(nb::ndarray<nb::numpy, const T>(data != nullptr ? data : &kNothing, shape, owner),
                  nb::rv_policy::reference);
}

// ---- the store, shared by what is made of it ----

// Ids that a step reads. The landing thread pushes it on the stack `done` when it has read them; a
// later call that has the GIL releases the array.
struct LentIds {
  virtual ~LentIds() = default;
  LentIds* next = nullptr;
  std::atomic<LentIds*>* done = nullptr;
  Array array;
};

// The last lines that were logged, until take_log. Shared by all that log.
struct LogLines {
  static constexpr std::size_t kMost = 1000;
  std::mutex mutex;
  std::deque<std::pair<std::int32_t, std::string>> lines;
  std::uint64_t lost = 0;

  // wm_ext_log's function, with a LogLines as its context. Any thread, without the GIL.
  static void Log(void* context, std::int32_t level, const char* text, std::size_t size);
};

// A wm_store and what it calls back into. Shared by the Python objects that need it.
class SharedStore {
 public:
  SharedStore() = default;
  // The store's last release waits for the landing thread.
  ~SharedStore();
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;

  // Releases the arrays on `done`. Needs the GIL; may run any Python.
  void GiveBack() {
    if (done.load(std::memory_order_relaxed) != nullptr) GiveBackAll();
  }

  wm_store* store = nullptr;
  wm_recorder* recorder = nullptr;
  wm_shape shape = {};
  std::atomic<LentIds*> done = nullptr;
  std::uint64_t version = 0;  // of the last step
  bool layers_first = false;  // layout of ids
  std::int64_t ranks = 1;     // that share the rows of a step

  const std::shared_ptr<LogLines> log = std::make_shared<LogLines>();

  // The thread that is in a call of the engine's thread; 0: none.
  std::atomic<std::uint64_t> engine{0};

 private:
  void GiveBackAll();
};

// One call of the engine's thread. FailedPrecondition while another thread is in one; the same
// thread may call again from a callback.
class EngineCall {
 public:
  explicit EngineCall(SharedStore& store);
  // For destructors: waits for the other thread instead. !held() when the interpreter is on its
  // way down and the other thread will never be back.
  EngineCall(SharedStore& store, std::nothrow_t);
  ~EngineCall() {
    if (outer_) store_.engine.store(0, std::memory_order_release);
  }
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;
  [[nodiscard]] bool held() const { return held_; }

 private:
  [[nodiscard]] bool Take();

  SharedStore& store_;
  bool outer_ = false;
  bool held_ = true;
};

// Reports a message of a ScheduleWriter, bytes, to the store. Inside an EngineCall.
void ReportTo(SharedStore& store, nb::handle message);

// The Python class of a store.
struct Store {
  std::shared_ptr<SharedStore> shared;  // null: closed
  // Appends events to the store's log. Engine's thread.
  void Report(const wm_event* events, std::size_t num_events) const;
  // FailedPrecondition when it is closed. Releases the arrays that the landing thread has read.
  SharedStore& open() const;
};

// The Python class of rows that were read.
struct Rows {
  explicit Rows(wm_rows* owned) : rows(owned) {}
  ~Rows() { Api().rows_release(rows); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  wm_rows* rows;
};
// Defines what Capture has beside the store's calls.
void BindCapture(nb::module_& module, nb::class_<Store>& store);
// (num_layers, top_k, num_experts, page_tokens, block_tokens, num_blocks, layer_ids).
nb::tuple ShapeTuple(const wm_shape& shape);

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_CORE_H_
