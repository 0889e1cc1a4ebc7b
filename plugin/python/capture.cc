// What the class Capture has beside the store's calls: steps, and rows that are taken.
#include "plugin/capture/capture.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "plugin/python/batch.h"
#include "plugin/python/module.h"
#include "plugin/python/session.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;
using waymark::StepId;

waymark::Capture& CaptureOf(SharedStore& store) {
  return *store.store->capture;
}

// ---- a step

// The Python class of a step: open until its ids are set, or it is lost or did not run.
struct Step {
  std::shared_ptr<SharedStore> store;
  std::uint64_t number = 0;
  std::int64_t rows = 0;
  bool layers_first = false;
  bool open = false;
  bool dropped = false;
  std::atomic<bool> done = true;  // no ids of it are being read

  ~Step() {
    if (!open || store == nullptr || !Alive()) return;
    const EngineCall call(*store, std::nothrow);  // a guard that was forgotten: its ids are lost
    if (call.held()) (void)CaptureOf(*store).Lose(StepId(number));
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

// Ids that the landing thread reads; it keeps them, and their step.
struct StepIdsLent : LentIds {
  nb::object step;
  std::atomic<bool>* flag = nullptr;
};

// On the landing thread, without the GIL.
void Done(void* context) {
  auto* const ids = static_cast<StepIdsLent*>(context);
  ids->flag->store(true, std::memory_order_release);
  ids->next = ids->done->load(std::memory_order_relaxed);
  while (!ids->done->compare_exchange_weak(ids->next, ids, std::memory_order_release,
                                           std::memory_order_relaxed)) {
  }
}

// The same for ids in a Buffer, whose step is kept.
void BufferDone(void* context) {
  static_cast<std::atomic<bool>*>(context)->store(true, std::memory_order_release);
}

// `given` as ids of a step of `rows` rows. With `prefix` the array may have more, graph padding.
waymark::StepIds IdsOf(const Array& array, const Step& step, bool prefix) {
  if (array.dims != 3) {
    Raise(WM_INVALID_ARGUMENT,
          std::string("ids: ") +
              (step.layers_first ? "[layers, rows, columns]" : "[rows, layers, columns]") +
              ", got " + std::to_string(array.dims) + " dimensions");
  }
  if (!array.on_host) Raise(WM_INVALID_ARGUMENT, "ids: host memory, got device memory");
  const int row_axis = step.layers_first ? 1 : 0;
  const std::int64_t rows = array.shape[row_axis];
  if (prefix ? rows < step.rows : rows != step.rows) {
    Raise(WM_INVALID_ARGUMENT, "ids: " + std::to_string(step.rows) +
                                   " rows, as many as the step, got " + std::to_string(rows));
  }
  const auto count = [](std::int64_t n) {
    return static_cast<std::int32_t>(std::min<std::int64_t>(n, INT32_MAX));
  };
  return {array.data,
          static_cast<waymark::IdType>(IdType(array, "ids")),
          count(step.rows),
          count(array.shape[1 - row_axis]),
          count(array.shape[2]),
          array.strides[row_axis],
          array.strides[1 - row_axis],
          array.strides[2]};
}

[[noreturn]] void RaiseCode(const waymark::StepCode& code) {
  waymark_python::RaiseCode(
      wm_code{code.code, static_cast<std::int32_t>(code.rule), code.index, code.value, 0});
}
void CheckEnded(const waymark::StepCode& code) {
  if (code.ok() || code.rule == waymark::StepRule::kLogFull) return;
  RaiseCode(code);
}
[[noreturn]] void RaiseRefused(const waymark::CaptureCode& code) {
  Check(code.ToStatus());
  Raise(WM_INTERNAL, "ids");
}

// Sets the ids of a step that was told. Inside an EngineCall.
void SetIds(Step& self, nb::handle object, nb::handle given, bool prefix) {
  auto lent = std::make_unique<StepIdsLent>();
  lent->array = ArrayOf(given, "ids");
  const waymark::StepIds ids = IdsOf(lent->array, self, prefix);
  lent->step = nb::borrow(object);
  lent->flag = &self.done;
  lent->LentIds::done = &self.store->done;
  self.done.store(false, std::memory_order_relaxed);
  const waymark::CaptureCode code =
      CaptureOf(*self.store).SetIds(StepId(self.number), ids, {&Done, lent.release()});
  if (code.ok() || code.dropped()) {
    self.open = false;
    self.dropped = code.dropped();
    return;
  }
  self.store->GiveBack();
  RaiseRefused(code);
}

// Whether the step is to be ended. One that was dropped has ended already, and its engine, which
// need not look, goes on.
bool IsOpen(const Step& self) {
  if (!self.open && !self.dropped) {
    Raise(WM_FAILED_PRECONDITION, "step " + std::to_string(self.number) + " has ended");
  }
  return self.open;
}

void GiveIds(nb::handle object, nb::handle given) {
  Step& self = *nb::inst_ptr<Step>(object);
  if (!IsOpen(self)) return;
  const EngineCall call(*self.store);
  SetIds(self, object, given, false);
}

template <waymark::StepCode (waymark::Capture::*end)(StepId)>
void End(Step& self) {
  if (!IsOpen(self)) return;
  const EngineCall call(*self.store);
  self.open = false;
  CheckEnded((CaptureOf(*self.store).*end)(StepId(self.number)));
}

void Exit(Step& self, const nb::args&) {
  if (self.open) End<&waymark::Capture::Lose>(self);
}

struct StepArgs {
  nb::handle number, version, rows, ids, asked, block_tokens, count, layout, events, message;
  bool derive_events;
};

bool LayersFirst(const SharedStore& store, nb::handle layout) {
  if (layout.is_none()) return store.layers_first;
  const auto name = nb::cast<std::string>(nb::str(layout));
  if (name != "NLK" && name != "LNK") {
    Raise(WM_INVALID_ARGUMENT, "layout: one of NLK, LNK; got '" + name + "'");
  }
  return name == "LNK";
}

// Reports a message, whose rows are read. Returns their tags.
std::vector<std::uint64_t> ReportTaking(SharedStore& store, nb::handle message) {
  const Bytes bytes = ReadableBytes(message, "message");
  std::vector<std::uint64_t> tags;
  Check(CaptureOf(store).ReportMessage({bytes.data, static_cast<std::size_t>(bytes.size)}, &tags));
  return tags;
}

const Buffer* BufferOf(nb::handle object) {
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(nb::type<Buffer>().ptr());
  return Py_TYPE(object.ptr()) == type ? nb::inst_ptr<Buffer>(object) : nullptr;
}

std::unique_ptr<Buffer> MakeBuffer(const Store& of, nb::handle given) {
  auto buffer = std::make_unique<Buffer>();
  buffer->array = ArrayOf(given, "array");
  if (!buffer->array.on_host || buffer->array.kind == 'f') {
    Raise(WM_INVALID_ARGUMENT, "array: integers in host memory");
  }
  (void)of.open();
  buffer->step = nb::cast(std::make_unique<Step>());
  return buffer;
}

// A whole step whose slots are in a Buffer, and its ids in another: what an engine does that has
// its memory from the start. Inside an EngineCall.
nb::object TellBuffers(SharedStore& store, std::uint64_t number, const Buffer& slots,
                       const Buffer& ids, std::int64_t count, bool layers_first, bool derive) {
  Step& step = *nb::inst_ptr<Step>(ids.step);
  const Array& rows = slots.array;
  if (rows.dims != 1 || rows.kind != 'i' || rows.item_bytes != 8 || !rows.contiguous()) {
    Raise(WM_INVALID_ARGUMENT, "rows: a buffer of slots, int64 with one dimension, contiguous");
  }
  if (count > rows.shape[0]) {
    Raise(WM_INVALID_ARGUMENT, "count: in [0, " + std::to_string(rows.shape[0]) +
                                   "], the number of rows, got " + std::to_string(count));
  }
  if (!step.done.load(std::memory_order_acquire)) {
    Raise(WM_FAILED_PRECONDITION,
          "ids: a buffer that no step reads, got that of step " + std::to_string(step.number));
  }
  step.number = number;
  step.rows = (count < 0 ? rows.shape[0] : count) / store.ranks;
  step.layers_first = layers_first;
  const waymark::StepBatch batch = {.step = number,
                                    .version = store.version,
                                    .slots = static_cast<const std::int64_t*>(rows.data),
                                    .num_slots = static_cast<std::size_t>(step.rows * store.ranks),
                                    .derive_events = derive};
  waymark::StepIds given;
  try {
    given = IdsOf(ids.array, step, count >= 0);
  } catch (...) {
    (void)CaptureOf(store).Step(batch, nullptr);  // the forward has run, whatever its ids are
    throw;
  }
  step.done.store(false, std::memory_order_relaxed);
  waymark::CaptureCode refused;
  const waymark::StepCode told =
      CaptureOf(store).Step(batch, &given, {&BufferDone, &step.done}, &refused);
  step.dropped = told.dropped() || told.rule == waymark::StepRule::kLogFull;
  if (!told.ok() && !step.dropped) RaiseCode(told);
  if (!refused.ok()) RaiseRefused(refused);
  return ids.step;
}

// Tells the step, and ends it unless `ids` is an ellipsis.
nb::object TellStep(const Store& of, const StepArgs& args) {
  static PyObject* const type = nb::type<Step>().ptr();
  SharedStore& store = of.open();
  const EngineCall call(store);
  if (!args.message.is_none()) (void)ReportTaking(store, args.message);
  waymark::Capture& capture = CaptureOf(store);
  const std::uint64_t number = args.number.is_none()
                                   ? capture.store().last_step().value() + 1
                                   : IntegerOf<std::uint64_t>(args.number, "number");
  if (!args.version.is_none()) {
    store.version = IntegerOf<std::uint64_t>(args.version, "version");
  }
  const Buffer* const slots = BufferOf(args.rows);
  const Buffer* const kept = BufferOf(args.ids);
  if (slots != nullptr && kept != nullptr && args.asked.is_none() && args.events.is_none()) {
    const std::int64_t count =
        args.count.is_none() ? -1 : IntegerOf<std::int64_t>(args.count, "count", 0);
    return TellBuffers(store, number, *slots, *kept, count, LayersFirst(store, args.layout),
                       args.derive_events);
  }
  const bool pairs = PyTuple_Check(args.rows.ptr());
  const nb::object none = nb::none();
  const nb::handle rows = slots != nullptr ? nb::handle(slots->array.owner) : args.rows;
  BatchArgs batch(number, store.version,
                  {pairs ? none : rows, pairs ? rows : none, args.asked, args.block_tokens,
                   store.shape.block_tokens},
                  args.events, BatchFlags(false, args.derive_events));
  if (!args.count.is_none()) batch.First(IntegerOf<std::int64_t>(args.count, "count"));
  nb::object object = nb::inst_alloc(type);
  Step& step = *new (nb::inst_ptr<Step>(object)) Step;
  nb::inst_mark_ready(object);
  step.store = of.shared;
  step.number = number;
  step.rows = batch.rows() / store.ranks;
  step.layers_first = LayersFirst(store, args.layout);
  const waymark::StepCode told = capture.Tell(batch.cpp());
  step.dropped = told.dropped() || told.rule == waymark::StepRule::kLogFull;
  if (step.dropped) return object;
  if (!told.ok()) RaiseCode(told);
  step.open = true;
  if (args.ids.is(nb::ellipsis())) return object;
  if (args.ids.is_none()) {
    step.open = false;
    CheckEnded(capture.Lose(StepId(number)));
    return object;
  }
  try {
    const nb::handle ids = kept != nullptr ? nb::handle(kept->array.owner) : args.ids;
    SetIds(step, object, ids, !args.count.is_none());
  } catch (...) {
    // The forward has run, whatever its ids are.
    step.open = false;
    (void)capture.Lose(StepId(number));
    throw;
  }
  return object;
}

// ---- rows

waymark::TakenRows Take(const Store& of, nb::handle block_ids, Int64<"tokens"> tokens,
                        Int64<"first"> first) {
  SharedStore& store = of.open();
  const Blocks blocks(block_ids, "blocks");
  const EngineCall call(store);
  return Value(CaptureOf(store).Take(blocks.ids(), first, tokens));
}

// None if they are not there after `timeout`.
nb::object ReadTaken(const waymark::TakenRows& taken, nb::handle timeout) {
  const std::int64_t ns = Nanoseconds(timeout);
  if (!taken.done()) {
    const wm_status status = WaitInSlices(ns, [&](std::int64_t slice) {
      return static_cast<wm_status>(taken.Wait(std::chrono::nanoseconds(slice)).code());
    });
    if (status == WM_DEADLINE_EXCEEDED) RaiseDeadline("the rows have not been read", timeout);
  }
  auto rows = Value(taken.rows());
  return nb::cast(std::make_unique<Rows>(new wm_rows(std::move(rows))));
}

void WhenDone(const waymark::TakenRows& taken, nb::object function) {
  // Released with the GIL, by whoever calls it last.
  const auto call = std::make_shared<nb::object>(std::move(function));
  taken.WhenDone([call]() mutable {
    const GilTaken gil;
    PyObject* const result = PyObject_CallNoArgs(call->ptr());
    if (result == nullptr) PyErr_WriteUnraisable(call->ptr());
    Py_XDECREF(result);
    call->reset();
  });
}

// [(tag, rows, failure)].
nb::list Results(const Store& of, nb::handle timeout) {
  SharedStore& store = of.open();
  waymark::Capture& capture = CaptureOf(store);
  if (!timeout.is_none()) {
    const std::int64_t ns = Nanoseconds(timeout);
    (void)WaitInSlices(ns, [&](std::int64_t slice) {
      return static_cast<wm_status>(capture.WaitResults(std::chrono::nanoseconds(slice)).code());
    });
  }
  nb::list out;
  for (const waymark::Capture::Result& result : capture.Results()) {
    auto rows = result.rows.rows();
    if (rows.ok()) {
      nb::object native = nb::cast(std::make_unique<Rows>(new wm_rows(*std::move(rows))));
      out.append(nb::make_tuple(result.tag, native, ""));
    } else {
      const std::string why(rows.status().message());
      out.append(nb::make_tuple(result.tag, nb::none(), why));
    }
  }
  return out;
}

}  // namespace

void BindCapture(nb::module_& module, nb::class_<Store>& store) {
  nb::class_<Step>(
      module, "Step",
      "A step that was told: Capture.step returns it. As a context it is a guard of the forward: "
      "leaving it without ids, by an exception or not, says that they are lost. Engine's thread.")
      .def_ro("number", &Step::number, "The number of the step.")
      .def_prop_rw(
          "ids", [](const Step&) { return nb::none(); },
          [](nb::handle self, nb::handle ids) { GiveIds(self, ids); },
          nb::for_setter(nb::sig("def ids(self, ids: object, /) -> None")),
          nb::for_getter(nb::sig("def ids(self) -> None")),
          "Sets the ids of the step, as Capture.step takes them; it has ended then.")
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
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", &Exit, nb::sig("def __exit__(self, *error: object) -> None"));

  nb::class_<Buffer>(module, "Buffer",
                     "Memory for the slots, or the ids, of steps: Capture.buffer makes it.")
      .def_ro("step", &Buffer::step,
              "The Step that reads the ids here, or has read them: one object for all of them.")
      .def_prop_ro(
          "free", [](const Buffer& self) { return self.free(); },
          "Whether no step reads the ids here, so that they may be written. Any thread.");
  nb::class_<waymark::TakenRows>(module, "TakenRows")
      .def("done", &waymark::TakenRows::done)
      .def("_result", &ReadTaken, "timeout"_a.none(),
           nb::sig("def _result(self, timeout: float | None) -> Rows"))
      .def("_when_done", &WhenDone, "function"_a);

  store
      .def(
          "step",
          [](const Store& self, nb::handle number, nb::handle version, nb::handle rows,
             nb::handle ids, nb::handle asked, nb::handle block_tokens, nb::handle count,
             nb::handle layout, nb::handle events, bool derive_events, nb::handle message) {
            return TellStep(self, {number, version, rows, ids, asked, block_tokens, count, layout,
                                   events, message, derive_events});
          },
          "number"_a.none(), "version"_a.none(), "rows"_a, "ids"_a.none() = nb::ellipsis(),
          nb::kw_only(), "asked"_a = nb::none(), "block_tokens"_a = nb::none(),
          "count"_a = nb::none(), "layout"_a = nb::none(), "events"_a = nb::none(),
          "derive_events"_a = false, "message"_a = nb::none(),
          nb::sig("def step(self, number: int | None, version: int | None, rows: object, "
                  "ids: object = ..., *, asked: object | None = None, "
                  "block_tokens: int | None = None, count: int | None = None, "
                  "layout: str | None = None, events: object | None = None, "
                  "derive_events: bool = False, message: object | None = None) -> Step"),
          "Tells a step, behind the events before it: a forward and the rows that it writes.\n\n"
          "number: above every earlier step; None: the one after the last. version: of the "
          "weights; None: that of the last step. rows: of the forward, in its order, without a "
          "copy of numpy arrays of the named types: slots, int64 [N], block * block_tokens + "
          "offset, -1 (padding) or NOT_ASKED(slot); or a tuple (blocks, positions), int32 or int64 "
          "[N] each, where a negative block is padding. asked, with pairs: bool or uint8 [N], 0: "
          "the row's request did not ask for routing. block_tokens: of the blocks of pairs; None: "
          "the store's, else a divisor of it.\n\n"
          "ids: uint8, uint16, int16, int32 or int64 in host memory, [N, L, >= K] or, with layout "
          "LNK, [L, N, >= K], any strides: kept, and must not change, until Step.done. -1 (65535 "
          "in uint16): none was written. None: lost, the rows are missing (not captured). Left "
          "out: they come later, by Step.ids, and what is told behind the step waits. layout: "
          "None: that of the capture (ids_layout). count: only the first so many of rows and ids "
          "are of the step (graph padding, arrays that are used again).\n\n"
          "events: as report takes them, before the step. derive_events: binds and seals of blocks "
          "that decodes fill follow from the rows (docs/integrating.md). message: of a "
          "ScheduleWriter, reported before the step.\n\n"
          "If there is no room for one more step it is dropped (capacity), and the engine goes on. "
          "An exception: the message or the rows were refused, and no step was told; or the ids, "
          "and the rows of the step are missing (not captured). Engine's thread.")
      .def(
          "_configure",
          [](const Store& self, bool layers_first, std::uint32_t max_results) {
            self.open().layers_first = layers_first;
            CaptureOf(self.open()).LimitResults(max_results);
          },
          "layers_first"_a, "max_results"_a)
      .def(
          "_report_message",
          [](const Store& self, nb::handle message) {
            SharedStore& shared = self.open();
            const EngineCall call(shared);
            nb::list tags;
            for (const std::uint64_t tag : ReportTaking(shared, message))
              tags.append(tag);
            return nb::tuple(tags);
          },
          "message"_a, nb::sig("def _report_message(self, message: object) -> tuple[int, ...]"))
      .def(
          "_name_layer",
          [](const Store& self, Int32<"layer"> layer, const char* name) {
            Check(CaptureOf(self.open()).NameLayer(layer, name));
          },
          "layer"_a, "name"_a)
      .def("buffer", &MakeBuffer, "array"_a, nb::sig("def buffer(self, array: object) -> Buffer"),
           "Memory that step() reads again and again as its rows (int64 slots) and its ids, which "
           "spares it looking into arrays: integers in host memory, which is kept and read as it "
           "was shaped here. Engine's thread.")
      .def("_take", &Take, "blocks"_a, "tokens"_a, "first"_a)
      .def("_results", &Results, "timeout"_a.none(),
           nb::sig("def _results(self, timeout: float | None) -> "
                   "list[tuple[int, Rows | None, str]]"))
      .def_prop_ro(
          "pending_results",
          [](const Store& self) { return CaptureOf(self.open()).pending_results(); },
          "How many snapshots of messages results() has not returned yet. Any thread.")
      .def_prop_ro(
          "results_given_up",
          [](const Store& self) { return CaptureOf(self.open()).results_given_up(); },
          "How many of them were given up, because too many waited. Any thread.");
}

}  // namespace waymark_python
