// What the bindings share: exceptions, the interpreter's lock, and waits.
//
// Each file here binds C++ classes of the core for Python; the package waymark
// (plugin/python/waymark/) derives its public classes from them and adds what is plain Python:
// numpy dtypes, enums, exceptions.
//
// The interpreter's lock (GIL): no callback ever takes it on the landing thread; callbacks of page
// sources take it on the publisher's thread and on the threads that fetch. Short calls on the
// engine's thread (a step, a take, events) keep it, which also serialises them; calls that copy
// more than kReleaseBytes, or wait, release it.
#ifndef WAYMARK_PLUGIN_PYTHON_CORE_H_
#define WAYMARK_PLUGIN_PYTHON_CORE_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/log.h"
#include "blockstore/shape.h"
#include "blockstore/step_code.h"

namespace waymark_python {

namespace nb = nanobind;

// Copies of fewer bytes are over before another thread would have woken up.
inline constexpr std::uint64_t kReleaseBytes = 64 << 10;

// Types of signatures, as stubs have them.
#define WAYMARK_ARRAY(type) "numpy.typing.NDArray[numpy." type "]"
#define WAYMARK_SHAPE "tuple[int, int, int, int, int, int, tuple[int, ...]]"

// ---- errors: each raises the exception class of its status (waymark/_errors.py); needs the GIL --

[[noreturn]] void Raise(const absl::Status& status);
[[noreturn]] void RaiseInvalid(std::string_view text);
// TypeError.
[[noreturn]] void RaiseType(std::string_view text);
// An error of the step path: the exception has rule, index and value, too.
[[noreturn]] void Raise(const waymark::StepCode& code);
inline void Check(const absl::Status& status) {
  if (!status.ok()) Raise(status);
}
// The value of a call, or its error as an exception.
template <typename T>
T Value(absl::StatusOr<T>&& of) {
  Check(of.status());
  return *std::move(of);
}
// Of a call that appends to the store's log. A full log is no error: the store loses its rows
// (capacity), and the engine continues.
inline void Check(const waymark::StepCode& code) {
  if (!code.ok() && code.rule != waymark::StepRule::kLogFull) Raise(code);
}

// ---- the GIL ----

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
// What `call` returns, which runs without the GIL if that is `wanted`. It touches no Python object.
template <typename Call>
auto Unlocked(Call call, bool wanted = true) {
  const GilReleased released(wanted);
  return call();
}
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
// A call of the library into Python: has the GIL as long as it lives. False once the interpreter
// exits: a thread that takes the GIL after that never gets it, and joining that thread would never
// end.
class Callback {
 public:
  Callback() {
    ++inside_;
    if (ended_) {
      --inside_;
    } else {
      gil_.emplace();
    }
  }
  ~Callback() {
    if (!gil_.has_value()) return;
    gil_.reset();
    --inside_;
  }
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  explicit operator bool() const { return gil_.has_value(); }
  // Refuses others, and waits, without the GIL, until none is in Python. For atexit.
  static void End();

 private:
  static inline std::atomic<int> inside_{0};
  static inline std::atomic<bool> ended_{false};
  static inline const pid_t process_ = getpid();
  std::optional<GilTaken> gil_;
};
// Whether the interpreter runs and is not being finalized.
inline bool Alive() {
  return Py_IsInitialized() != 0;
}

// Nanoseconds of a timeout in seconds; None: -1, for ever. InvalidArgument, naming the argument,
// below 0 and for NaN.
std::int64_t Nanoseconds(nb::handle timeout, const char* name = "timeout");
// For a wait whose timeout is over; the library's own text names one slice of it.
[[noreturn]] void RaiseDeadline(const char* what, nb::handle timeout, const std::string& why = {});
// Calls `wait(timeout)`, without the GIL and for a tenth of a second at a time, so that Ctrl-C
// works, until it returns another status than DeadlineExceeded or `timeout_ns` (-1: none) is over.
template <typename Wait>
absl::Status WaitInSlices(std::int64_t timeout_ns, Wait wait) {
  constexpr std::int64_t kSlice = 100'000'000;
  for (;;) {
    const std::int64_t slice = timeout_ns < 0 || timeout_ns > kSlice ? kSlice : timeout_ns;
    absl::Status status = Unlocked([&] { return wait(std::chrono::nanoseconds(slice)); });
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (timeout_ns >= 0) timeout_ns -= slice;
    if (!absl::IsDeadlineExceeded(status) || timeout_ns == 0) return status;
  }
}

// The LogCallback of all that logs (log_lines.cc). Any thread, without the GIL.
void AddLogLine(void* context, waymark::LogLevel level, const char* text, std::size_t size);

// ---- integer arguments: what is not an integer, or out of range, raises an exception that names
// the argument, its range and the value; nanobind's own text names none of them. Needs the GIL ----

// `object` as an integer in [least, most]: an int, or anything with __index__ (numpy's integers),
// but no bool. TypeError if it is none, InvalidArgumentError if it is out of range.
std::int64_t SignedOf(nb::handle object, const char* name, std::int64_t least, std::int64_t most);
std::uint64_t UnsignedOf(nb::handle object, const char* name, std::uint64_t least,
                         std::uint64_t most);
// The same for any integer type; without bounds, the type's.
template <typename T>
T IntegerOf(nb::handle object, const char* name, T least = std::numeric_limits<T>::min(),
            T most = std::numeric_limits<T>::max()) {
  if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(SignedOf(object, name, least, most));
  } else {
    return static_cast<T>(UnsignedOf(object, name, least, most));
  }
}

// The name of an argument, as a template argument.
template <std::size_t N>
struct ArgumentName {
  consteval ArgumentName(const char (&name)[N]) { std::copy_n(name, N, text); }
  char text[N];
};

// A parameter of a bound function: any integer that fits T. `kName` is what an exception calls it.
// It takes part in no choice of overloads: overloads that differ in it must differ in their number
// of arguments.
template <typename T, ArgumentName kName>
struct Integer {
  T value;
  operator T() const { return value; }
};
template <ArgumentName kName>
using Int32 = Integer<std::int32_t, kName>;
template <ArgumentName kName>
using Int64 = Integer<std::int64_t, kName>;
template <ArgumentName kName>
using Uint32 = Integer<std::uint32_t, kName>;
template <ArgumentName kName>
using Uint64 = Integer<std::uint64_t, kName>;

// ---- shapes ----

// (num_layers, top_k, num_experts, page_tokens, block_tokens, num_blocks, layer_ids) of a shape,
// where blocks are 0 unless it is a store's; and the shape of such a tuple, which is valid.
nb::tuple ShapeTuple(const waymark::RoutingShape& shape, std::int32_t block_tokens = 0,
                     std::int32_t num_blocks = 0);
waymark::RoutingShape ShapeOf(const nb::tuple& shape);

// ---- the core's parts of the module waymark._core, each defined by the file of its name ----

void BindCapture(nb::module_& module);
void BindLog(nb::module_& module);
void BindRows(nb::module_& module);
void BindDocument(nb::module_& module);
void BindFetching(nb::module_& module);
void BindCallbackSource(nb::module_& module);

}  // namespace waymark_python

template <typename T, waymark_python::ArgumentName kName>
struct nanobind::detail::type_caster<waymark_python::Integer<T, kName>> {
  using Value = waymark_python::Integer<T, kName>;
  static constexpr auto Name = const_name("int");
  template <typename>
  using Cast = Value;
  template <typename>
  static constexpr bool can_cast() {
    return true;
  }
  // Any object: a refusal here would become nanobind's text.
  bool from_python(handle object, std::uint8_t, cleanup_list*) noexcept {
    object_ = object;
    return true;
  }
  // Right before the call, where an exception is passed on.
  explicit operator Value() const { return {waymark_python::IntegerOf<T>(object_, kName.text)}; }

 private:
  handle object_;  // the caller's, who keeps it until the call is over
};

#endif  // WAYMARK_PLUGIN_PYTHON_CORE_H_
