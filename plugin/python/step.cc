// The steps of a Capture.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "blockstore/step_path.h"
#include "plugin/python/capture.h"
#include "plugin/python/events.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;
using waymark::StepId;

// The Python class of a step: open until its ids are set, or it is lost or did not run.
struct Step {
  std::shared_ptr<SharedCapture> capture;  // null: the step has ended
  std::uint64_t number = 0;
  std::int64_t rows = 0;
  bool layers_first = false;
  bool padded = false;  // its ids may have more rows
  bool open = false;
  bool dropped = false;
  std::atomic<bool> done = true;  // no ids of it are being read

  ~Step() {
    if (!open || !Alive()) return;
    const EngineCall call(*capture, std::nothrow);  // a guard that was forgotten: its ids are lost
    if (call.held() && !capture->closed()) (void)capture->capture->Lose(StepId(number));
  }
};

// The Python class of memory that steps read again and again: its array is looked into once.
struct Buffer {
  Array array;
  nb::object step;  // one object for all steps whose ids are here

  [[nodiscard]] bool free() const {
    return nb::inst_ptr<Step>(step)->done.load(std::memory_order_acquire);
  }
  // Memory that is still being read is never given back.
  ~Buffer() {
    if (!step.is_valid() || !Alive() || free()) return;
    (void)new Array(std::move(array));
    (void)step.release();
  }
};

// On the landing thread, without the GIL.
void Done(void* context) {
  auto* const ids = static_cast<LentIds*>(context);
  ids->read->store(true, std::memory_order_release);
  ids->next = ids->done->load(std::memory_order_relaxed);
  while (!ids->done->compare_exchange_weak(ids->next, ids, std::memory_order_release,
                                           std::memory_order_relaxed)) {
  }
}

// The same for ids in a Buffer, whose step is kept.
WAYMARK_STEP_PATH void BufferDone(void* context) {
  static_cast<std::atomic<bool>*>(context)->store(true, std::memory_order_release);
}

// An array that has not the rows of the step: both shapes, and the likely mistake.
[[noreturn, gnu::cold]] void RaiseRows(const SharedCapture& shared, const Array& array,
                                       const Step& step, int row_axis) {
  const waymark::CaptureSession& session = shared.capture->session();
  const std::int32_t layers = session.shape().num_layers;
  std::int64_t wanted[] = {layers, layers, session.shape().top_k + session.extra_columns()};
  wanted[row_axis] = step.rows;
  RaiseInvalid(absl::StrCat("ids: ", step.padded ? "at least [" : "[", absl::StrJoin(wanted, ", "),
                            "], got [", absl::StrJoin(std::span(array.shape, 3), ", "), "]",
                            array.shape[1 - row_axis] != step.rows ? ""
                            : row_axis == 0                        ? ", ids_layout='LNK'?"
                                                                   : ", ids_layout='NLK'?"));
}

// `given` as ids of a step.
WAYMARK_STEP_PATH waymark::StepIds IdsOf(const SharedCapture& shared, const Array& array,
                                         const Step& step) {
  if (array.dims != 3) {
    RaiseInvalid(std::string("ids: ") +
                 (step.layers_first ? "[layers, rows, columns]" : "[rows, layers, columns]") +
                 ", got " + std::to_string(array.dims) + " dimensions");
  }
  if (!array.on_host) RaiseInvalid("ids: host memory, got device memory");
  const int row_axis = step.layers_first ? 1 : 0;
  const std::int64_t rows = array.shape[row_axis];
  if (step.padded ? rows < step.rows : rows != step.rows) RaiseRows(shared, array, step, row_axis);
  const auto count = [](std::int64_t n) {
    return static_cast<std::int32_t>(std::min<std::int64_t>(n, INT32_MAX));
  };
  return {array.data,
          ItemType(array, "ids"),
          count(step.rows),
          count(array.shape[1 - row_axis]),
          count(array.shape[2]),
          array.strides[row_axis],
          array.strides[1 - row_axis],
          array.strides[2]};
}

// Keeps `given`, the ids of the step `object`, until `done` is called.
waymark::StepIds Keep(SharedCapture& capture, nb::handle object, nb::handle given,
                      waymark::DoneCallback& done) {
  Step& step = *nb::inst_ptr<Step>(object);
  auto lent = std::make_unique<LentIds>();
  lent->array = ArrayOf(given, "ids");
  const waymark::StepIds ids = IdsOf(capture, lent->array, step);
  lent->step = nb::borrow(object);
  lent->read = &step.done;
  lent->done = &capture.done;
  step.done.store(false, std::memory_order_relaxed);
  done = {&Done, lent.release()};
  return ids;
}

// Raises why the ids of a step were refused, which are not read then.
WAYMARK_STEP_PATH void CheckIds(SharedCapture& capture, const waymark::StepCode& code) {
  if (code.ok() || code.dropped()) return;
  capture.GiveBack();
  Raise(code);
}

// Calls `end`, which ends the step, with its capture, which an ended step no longer keeps: the ids
// that are read keep the step. One that was dropped has ended already, and its engine, which need
// not look, goes on.
template <typename F>
void WithOpen(Step& self, F end) {
  if (self.dropped) return;
  if (!self.open) {
    Raise(absl::FailedPreconditionError("step " + std::to_string(self.number) + " has ended"));
  }
  const std::shared_ptr<SharedCapture> capture = self.capture;
  const EngineCall call(*capture);
  if (capture->closed()) Raise(absl::FailedPreconditionError("the capture is closed"));
  end(*capture);
  self.capture.reset();
}

template <waymark::StepCode (waymark::Capture::*end)(StepId)>
void End(Step& self) {
  WithOpen(self, [&](SharedCapture& capture) {
    self.open = false;
    Check((*capture.capture.*end)(StepId(self.number)));
  });
}

void GiveIds(nb::handle object, nb::handle given) {
  Step& self = *nb::inst_ptr<Step>(object);
  if (given.is_none()) return End<&waymark::Capture::Lose>(self);
  WithOpen(self, [&](SharedCapture& capture) {
    waymark::DoneCallback done;
    const waymark::StepIds ids = Keep(capture, object, given, done);
    const waymark::StepCode code = capture.capture->SetIds(StepId(self.number), ids, done);
    CheckIds(capture, code);
    self.open = false;
    self.dropped = code.dropped();
  });
}

void Exit(Step& self, const nb::args&) {
  if (self.open && !self.capture->closed()) End<&waymark::Capture::Lose>(self);
}

// What Capture.step takes.
struct StepArgs {
  nb::handle number, version, rows, ids, asked, block_tokens, count, layout, events;
};

// A StepBatch of a call's arguments, which it keeps.
class BatchArgs {
 public:
  // `rows`: slots, int64 [rows]; or a tuple (blocks, positions).
  BatchArgs(std::uint64_t number, std::uint64_t version, nb::handle rows, const StepArgs& args,
            std::int32_t store_block_tokens) {
    batch_.step = number;
    batch_.version = version;
    if (PyTuple_Check(rows.ptr())) {
      TakePairs(rows, args, store_block_tokens);
    } else {
      TakeSlots(rows, args);
    }
    if (!args.events.is_none()) {
      events_.emplace(args.events);
      batch_.events = events_->events().data();
      batch_.num_events = events_->events().size();
    }
    if (!args.count.is_none()) TakeCount(IntegerOf<std::int64_t>(args.count, "count"));
  }
  BatchArgs(const BatchArgs&) = delete;
  BatchArgs& operator=(const BatchArgs&) = delete;
  // Valid as long as this object and its arguments.
  [[nodiscard]] const waymark::StepBatch& get() const { return batch_; }
  // How many rows the batch has.
  [[nodiscard]] std::int64_t rows() const {
    return static_cast<std::int64_t>(batch_.pairs != nullptr ? pairs_.num_rows : batch_.num_slots);
  }

 private:
  void TakeSlots(nb::handle rows, const StepArgs& args) {
    indexes_[0].emplace(rows, "slots");
    batch_.slots = indexes_[0]->data();
    batch_.num_slots = indexes_[0]->size();
    if (!args.asked.is_none()) {
      RaiseInvalid("asked: with pairs; a slot that is not asked for is NOT_ASKED(slot)");
    }
    if (!args.block_tokens.is_none()) {
      RaiseInvalid(std::string("block_tokens: with pairs, got ") +
                   nb::repr(args.block_tokens).c_str());
    }
  }

  void TakePairs(nb::handle rows, const StepArgs& args, std::int32_t store_block_tokens) {
    if (PyTuple_Size(rows.ptr()) != 2) RaiseType("pairs must be (block_idx, local_position)");
    std::size_t positions = 0;
    pairs_.block_idx = TakeIndexes(PyTuple_GetItem(rows.ptr(), 0), "block_idx", 0, pairs_.num_rows,
                                   pairs_.index_bytes);
    pairs_.local_position = TakeIndexes(PyTuple_GetItem(rows.ptr(), 1), "local_position", 1,
                                        positions, pairs_.position_bytes);
    if (positions != pairs_.num_rows) {
      RaiseInvalid("local_position: as many as block_idx, got " + std::to_string(positions) +
                   " of " + std::to_string(pairs_.num_rows));
    }
    pairs_.block_tokens = args.block_tokens.is_none()
                              ? store_block_tokens
                              : IntegerOf<std::int32_t>(args.block_tokens, "block_tokens");
    pairs_.asked = TakeAsked(args.asked, pairs_.num_rows);
    batch_.pairs = &pairs_;
  }

  // int32 or int64, [count]; sets their bytes.
  const void* TakeIndexes(nb::handle given, const char* name, int index, std::size_t& count,
                          std::int32_t& bytes) {
    NumpyMemory& memory = memory_[index];
    if (memory.Take(given, NumpyTypes::Get().int32, 1)) {
      bytes = 4;
      count = memory.shape(0);
      return memory.data();
    }
    const Integers<std::int64_t>& taken = indexes_[index].emplace(given, name);
    bytes = 8;
    count = taken.size();
    return taken.data();
  }

  // The flags of `count` rows.
  const std::uint8_t* TakeAsked(nb::handle asked, std::size_t count) {
    if (asked.is_none()) return nullptr;
    const NumpyTypes& types = NumpyTypes::Get();
    const void* flags = nullptr;
    std::size_t size = 0;
    if (asked_.Take(asked, types.boolean, 1) || asked_.Take(asked, types.uint8, 1)) {
      flags = asked_.data();
      size = asked_.shape(0);
    } else {
      asked_array_ = ArrayOf(asked, "asked");
      const bool flag = asked_array_.kind == 'u' || asked_array_.kind == 'b';
      if (!flag || asked_array_.item_bytes != 1 || asked_array_.dims != 1 ||
          !asked_array_.contiguous() || !asked_array_.on_host) {
        RaiseType(
            "asked must be an array of bool or uint8 with one dimension, contiguous, in host "
            "memory");
      }
      flags = asked_array_.data;
      size = static_cast<std::size_t>(asked_array_.shape[0]);
    }
    if (size != count) {
      RaiseInvalid("asked: one per row, got " + std::to_string(size) + " of " +
                   std::to_string(count));
    }
    return static_cast<const std::uint8_t*>(flags);
  }

  // Only the first `count` rows are of the batch.
  void TakeCount(std::int64_t count) {
    if (count < 0 || count > rows()) {
      RaiseInvalid("count: in [0, " + std::to_string(rows()) + "], the number of rows, got " +
                   std::to_string(count));
    }
    (batch_.pairs != nullptr ? pairs_.num_rows : batch_.num_slots) =
        static_cast<std::size_t>(count);
  }

  waymark::StepBatch batch_;
  waymark::PairRows pairs_;
  std::optional<GivenEvents> events_;
  std::optional<Integers<std::int64_t>> indexes_[2];  // slots, or what is not int32 of pairs
  NumpyMemory memory_[2];
  NumpyMemory asked_;
  Array asked_array_;  // where it is not numpy's
};

bool LayersFirst(const SharedCapture& shared, nb::handle layout) {
  if (layout.is_none()) return shared.layers_first;
  const auto name = nb::cast<std::string>(nb::str(layout));
  if (name != "NLK" && name != "LNK") {
    RaiseInvalid("layout: one of NLK, LNK; got '" + name + "'");
  }
  return name == "LNK";
}

WAYMARK_STEP_PATH const Buffer* BufferOf(nb::handle object) {
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(nb::type<Buffer>().ptr());
  return Py_TYPE(object.ptr()) == type ? nb::inst_ptr<Buffer>(object) : nullptr;
}

std::unique_ptr<Buffer> MakeBuffer(const Capture& of, nb::handle given) {
  auto buffer = std::make_unique<Buffer>();
  buffer->array = ArrayOf(given, "array");
  if (!buffer->array.on_host || buffer->array.kind == 'f') {
    RaiseInvalid("array: integers in host memory");
  }
  (void)of.open();
  buffer->step = nb::cast(std::make_unique<Step>());
  return buffer;
}

// What the capture said when it was told a step.
WAYMARK_STEP_PATH void Told(SharedCapture& shared, std::uint64_t version, Step& step,
                            const waymark::StepCode& told) {
  step.dropped = told.dropped() || told.rule == waymark::StepRule::kLogFull;
  if (!told.ok() && !step.dropped) {
    shared.GiveBack();
    Raise(told);
  }
  shared.version = version;
}

// Tells a whole step, whose ids `take(done)` returns, or raises: the forward has run, whatever its
// ids are, and they are lost then.
template <typename Take>
WAYMARK_STEP_PATH void TellWhole(SharedCapture& shared, const waymark::StepBatch& batch, Step& step,
                                 Take take) {
  waymark::StepIds ids;
  waymark::DoneCallback done;
  bool told = false;
  try {
    try {
      ids = take(done);
    } catch (...) {
      told = shared.capture->Step(batch, nullptr).ok();
      throw;
    }
    waymark::StepCode refused;
    Told(shared, batch.version, step, shared.capture->Step(batch, &ids, done, &refused));
    told = true;
    CheckIds(shared, refused);
  } catch (nb::python_error& error) {
    if (!told) throw;
    const nb::object raised = nb::borrow(error.value());
    raised.attr("args") = nb::make_tuple(std::string(nb::str(raised).c_str()) + ": step " +
                                         std::to_string(batch.step) +
                                         " is told, its rows are missing (not captured)");
    throw;
  }
}

// A whole step whose slots are in a Buffer, and its ids in another: what an engine does that has
// its memory from the start. Inside an EngineCall.
WAYMARK_STEP_PATH nb::object TellBuffers(SharedCapture& shared, waymark::StepBatch& batch,
                                         const Buffer& slots, const Buffer& ids, std::int64_t count,
                                         bool layers_first) {
  Step& step = *nb::inst_ptr<Step>(ids.step);
  const Array& rows = slots.array;
  if (rows.dims != 1 || rows.kind != 'i' || rows.item_bytes != 8 || !rows.contiguous()) {
    RaiseInvalid("rows: a buffer of slots, int64 with one dimension, contiguous");
  }
  if (count > rows.shape[0]) {
    RaiseInvalid("count: in [0, " + std::to_string(rows.shape[0]) + "], the number of rows, got " +
                 std::to_string(count));
  }
  if (!step.done.load(std::memory_order_acquire)) {
    Raise(absl::FailedPreconditionError("ids: a buffer that no step reads, got that of step " +
                                        std::to_string(step.number)));
  }
  step.number = batch.step;
  step.rows = (count < 0 ? rows.shape[0] : count) / shared.ranks;
  step.layers_first = layers_first;
  step.padded = count >= 0;
  batch.slots = static_cast<const std::int64_t*>(rows.data);
  batch.num_slots = static_cast<std::size_t>(step.rows * shared.ranks);
  TellWhole(shared, batch, step, [&](waymark::DoneCallback& done) {
    const waymark::StepIds given = IdsOf(shared, ids.array, step);
    step.done.store(false, std::memory_order_relaxed);
    done = {&BufferDone, &step.done};
    return given;
  });
  return ids.step;
}

// A new Step of `rows` rows.
nb::object MakeStep(std::uint64_t number, std::int64_t rows, bool layers_first) {
  static PyObject* const type = nb::type<Step>().ptr();
  nb::object object = nb::inst_alloc(type);
  Step& step = *new (nb::inst_ptr<Step>(object)) Step;
  nb::inst_mark_ready(object);
  step.number = number;
  step.rows = rows;
  step.layers_first = layers_first;
  return object;
}

// Any other step; ends it unless `ids` is an ellipsis. Inside an EngineCall.
[[gnu::noinline]] nb::object TellArrays(const Capture& of, const StepArgs& args,
                                        std::uint64_t number, std::uint64_t version,
                                        bool layers_first, const Buffer* slots,
                                        const Buffer* kept) {
  SharedCapture& shared = *of.shared;
  waymark::Capture& capture = *shared.capture;
  const nb::handle rows = slots != nullptr ? nb::handle(slots->array.owner) : args.rows;
  const BatchArgs batch(number, version, rows, args, capture.store().options().block_tokens);
  nb::object object = MakeStep(number, batch.rows() / shared.ranks, layers_first);
  Step& step = *nb::inst_ptr<Step>(object);
  step.padded = !args.count.is_none();
  if (args.ids.is(nb::ellipsis())) {
    Told(shared, version, step, capture.Tell(batch.get()));
    step.open = !step.dropped;
    if (step.open) step.capture = of.shared;
  } else if (args.ids.is_none()) {
    Told(shared, version, step, capture.Step(batch.get(), nullptr));
  } else {
    const nb::handle ids = kept != nullptr ? nb::handle(kept->array.owner) : args.ids;
    TellWhole(shared, batch.get(), step,
              [&](waymark::DoneCallback& done) { return Keep(shared, object, ids, done); });
  }
  return object;
}

// A step: the commonest kind touches no function but those on the step path.
WAYMARK_STEP_PATH nb::object TellStep(const Capture& of, const StepArgs& args) {
  SharedCapture& shared = of.open();
  const EngineCall call(shared);
  const std::uint64_t number = args.number.is_none()
                                   ? shared.capture->store().last_step().value() + 1
                                   : IntegerOf<std::uint64_t>(args.number, "number");
  const std::uint64_t version =
      args.version.is_none() ? shared.version : IntegerOf<std::uint64_t>(args.version, "version");
  const bool layers_first = LayersFirst(shared, args.layout);
  const Buffer* const slots = BufferOf(args.rows);
  const Buffer* const ids = BufferOf(args.ids);
  if (slots == nullptr || ids == nullptr || !args.asked.is_none() || !args.events.is_none()) {
    return TellArrays(of, args, number, version, layers_first, slots, ids);
  }
  const std::int64_t count =
      args.count.is_none() ? -1 : IntegerOf<std::int64_t>(args.count, "count", 0);
  waymark::StepBatch batch = {.step = number, .version = version};
  return TellBuffers(shared, batch, *slots, *ids, count, layers_first);
}

}  // namespace

void BindSteps(nb::module_& module, nb::class_<Capture>& capture) {
  nb::class_<Step>(
      module, "Step",
      "A step that was told: Capture.step returns it. As a context it is a guard of the forward: "
      "leaving it without ids, by an exception or not, says that they are lost. Engine's thread.")
      .def_ro("number", &Step::number, "The number of the step.")
      .def_prop_rw(
          "ids", [](const Step&) { return nb::none(); },
          [](nb::handle self, nb::handle ids) { GiveIds(self, ids); },
          nb::for_setter(nb::sig("def ids(self, ids: object, /) -> None")),
          nb::for_setter("ids"_a.none()), nb::for_getter(nb::sig("def ids(self) -> None")),
          "Sets the ids of the step, as Capture.step takes them (None: lost()); it has ended then.")
      .def("lost", &End<&waymark::Capture::Lose>,
           "The forward ran, or may have, and its ids are lost: the rows are missing (not "
           "captured).")
      .def("not_run", &End<&waymark::Capture::NotRun>,
           "No kernel that writes KV was issued: the step has no effect, and neither have its own "
           "seals; report them again with the step that runs.")
      .def_prop_ro(
          "done", [](const Step& self) { return self.done.load(std::memory_order_acquire); },
          "Whether the memory of its ids may be written again. Any thread.")
      .def_ro("dropped", &Step::dropped,
              "Whether there was no room for it, so that its rows are missing (capacity). It has "
              "ended; "
              "setting its ids, lost() and not_run() do nothing then.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Step"))
      .def("__exit__", &Exit, nb::sig("def __exit__(self, *error: object) -> None"));

  nb::class_<Buffer>(module, "Buffer",
                     "Memory for the slots, or the ids, of steps: Capture.buffer makes it.")
      .def_ro("step", &Buffer::step,
              "The Step that reads the ids here, or has read them: one object for all of them.")
      .def_prop_ro(
          "free", [](const Buffer& self) { return self.free(); },
          "Whether no step reads the ids here, so that they may be written. Any thread.");
  capture
      .def(
          "step",
          [](const Capture& self, nb::handle number, nb::handle version, nb::handle rows,
             nb::handle ids, nb::handle asked, nb::handle block_tokens, nb::handle count,
             nb::handle layout, nb::handle events) {
            return TellStep(
                self, {number, version, rows, ids, asked, block_tokens, count, layout, events});
          },
          "number"_a.none(), "version"_a.none(), "rows"_a, "ids"_a.none() = nb::ellipsis(),
          nb::kw_only(), "asked"_a = nb::none(), "block_tokens"_a = nb::none(),
          "count"_a = nb::none(), "layout"_a = nb::none(), "events"_a = nb::none(),
          nb::sig("def step(self, number: int | None, version: int | None, rows: object, "
                  "ids: object = ..., *, asked: object | None = None, "
                  "block_tokens: int | None = None, count: int | None = None, "
                  "layout: str | None = None, events: object | None = None) -> Step"),
          "Tells a step, behind the events before it: a forward and the rows that it writes.\n\n"
          "number: above every earlier step; None: the one after the last. version: of the "
          "weights; None: the last step's. rows: of the forward, in its order, without a copy of "
          "numpy arrays of the named types: slots, int64 [N], block * block_tokens + offset, -1 "
          "(padding) or NOT_ASKED(slot); or a tuple (blocks, positions within the block), int32 "
          "or int64 [N] each, where a negative block is padding. asked, with pairs: bool or uint8 "
          "[N], 0: the row's request did not ask for routing. block_tokens: of the blocks of "
          "pairs; None: the store's, else a divisor of it.\n\n"
          "ids: uint8 (up to 256 experts), uint16, int16, int32 or int64 in host memory, [N, L, "
          "C] or, with layout LNK, [L, N, C], any strides, C = K + extra_columns: kept, and must "
          "not change, until Step.done. -1 (65535 in uint16): none was written. None: lost, the "
          "rows are missing (not captured). Left out: they come later, by Step.ids, and what is "
          "told behind the step waits. layout: None: the capture's (ids_layout). count: only the "
          "first so many of rows and ids, late ones too, are of the step (graph padding).\n\n"
          "events: as report takes them, before the step.\n\n"
          "If there is no room for one more step it is dropped (capacity), and the engine goes "
          "on. An exception: the rows were refused, and no step was told; or the "
          "ids, and the rows of the step are missing (not captured). Engine's thread.")
      .def("buffer", &MakeBuffer, "array"_a, nb::sig("def buffer(self, array: object) -> Buffer"),
           "Memory that step() reads again and again as its rows (int64 slots) and its ids, which "
           "spares it looking into arrays: integers in host memory, which is kept and read as it "
           "was shaped here. Engine's thread.");
}

}  // namespace waymark_python
