// Capture: how it is made, what it tells of itself, and the rows that are taken.
#include "plugin/python/capture.h"

#include <chrono>
#include <optional>

#include "absl/strings/match.h"
#include "blockstore/step_path.h"
#include "plugin/python/events.h"
#include "plugin/python/reading.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;
using waymark::Stats;

std::vector<std::int32_t> VectorOf(nb::handle given, const char* name) {
  const Integers<std::int32_t> numbers(given, name);
  return {numbers.data(), numbers.data() + numbers.size()};
}

// (ring_bytes, ids, cpus), or None.
absl::Status MakeRecorder(SharedCapture& shared, nb::handle given, waymark::StoreOptions& store) {
  if (given.is_none()) return absl::OkStatus();
  waymark::RecorderOptions options;
  options.ring_bytes = IntegerOf<std::uint64_t>(given[0], "recorder.ring_bytes");
  if (nb::cast<bool>(given[1])) options.rows = waymark::FlightRows::kIds;
  options.cpus = VectorOf(given[2], "recorder.cpus");
  auto made = Unlocked([&] { return waymark::FlightRecorder::Create(store, options); });
  if (!made.ok()) return made.status();
  shared.recorder = *std::move(made);
  store.flight = shared.recorder->sink();
  return absl::OkStatus();
}

// row_gather: (all_gather, rank, ranks), or None. options: texts by name, for SetStoreOption.
void MakeCapture(Capture* self, Int32<"num_layers"> num_layers, Int32<"top_k"> top_k,
                 Int32<"num_experts"> num_experts, Int32<"num_blocks"> num_blocks,
                 Int32<"page_tokens"> page_tokens, Int32<"block_tokens"> block_tokens,
                 nb::handle layer_ids, nb::handle null_blocks, nb::handle landing_cpus,
                 const nb::dict& texts, nb::handle recorder, nb::handle row_gather,
                 bool layers_first, Int32<"extra_columns"> extra_columns,
                 std::optional<std::string> engine, nb::handle tier) {
  auto shared = std::make_shared<SharedCapture>();
  waymark::Capture::Options options;
  waymark::StoreOptions& store = options.store;
  store.log = {&AddLogLine, nullptr};
  store.shape.num_layers = num_layers;
  store.shape.top_k = top_k;
  store.shape.num_experts = num_experts;
  store.shape.page_tokens = page_tokens;
  store.shape.layer_ids = VectorOf(layer_ids, "layer_ids");
  store.num_blocks = num_blocks;
  store.block_tokens = block_tokens;
  for (const std::int32_t block : VectorOf(null_blocks, "null_blocks"))
    store.null_blocks.emplace_back(block);
  store.landing_cpus = VectorOf(landing_cpus, "landing_cpus");
  for (const auto& [name, text] : texts) {
    Check(waymark::SetStoreOption(store, nb::cast<std::string>(name), nb::cast<std::string>(text)));
  }
  if (!row_gather.is_none()) {
    options.row_gather = CollectiveOf(row_gather[0], IntegerOf<std::int32_t>(row_gather[1], "rank"),
                                      IntegerOf<std::int32_t>(row_gather[2], "ranks", 1));
    shared->ranks = options.row_gather.ranks;
  }
  options.extra_columns = extra_columns;
  options.engine = std::move(engine);
  options.tier = TierOptionsOf(tier);
  shared->layers_first = layers_first;
  Check(MakeRecorder(*shared, recorder, store));
  shared->capture = Value(Unlocked([&] { return waymark::Capture::Create(options); }));
  new (self) Capture{std::move(shared)};
}

std::int64_t CoveredPrefix(const Capture& self, nb::handle block_ids, Int64<"rows"> rows) {
  const Blocks blocks(block_ids, "blocks");
  if (rows < 0) RaiseInvalid("rows: at least 0, got " + std::to_string(rows));
  return self.here().store().CoveredPrefix(blocks.ids(), rows);
}

void WaitIdle(const Capture& self, nb::handle timeout) {
  SharedCapture& shared = self.open();
  const std::int64_t ns = Nanoseconds(timeout);
  absl::Status status;
  {
    const EngineCall call(shared);
    status = WaitInSlices(
        ns, [&](std::chrono::nanoseconds slice) { return shared.capture->WaitIdle(slice); });
  }
  shared.GiveBack();
  if (absl::IsDeadlineExceeded(status)) {
    const bool steps = absl::StartsWith(status.message(), "WaitIdle");
    RaiseDeadline(steps ? "steps have not ended" : std::string(status.message()).c_str(), timeout,
                  shared.store().waiting_step()->ToString());
  }
  Check(status);
}

// [(block, step, kept_step, sealed_step, rows, voided, agreement, text, two_pages, pages,
// last_step)].
nb::list TakeFindings(const Capture& self) {
  nb::list out;
  for (const waymark::AuditFinding& finding : self.here().store().TakeFindings()) {
    out.append(nb::make_tuple(finding.block, finding.step, finding.kept_step, finding.sealed_step,
                              finding.rows, finding.voided, finding.agreement, finding.ToString(),
                              finding.two_pages, finding.pages, finding.last_step));
  }
  return out;
}

waymark::FlightRecorder& RecorderOf(const Capture& self) {
  SharedCapture& shared = self.open();
  if (shared.recorder == nullptr) {
    Raise(absl::FailedPreconditionError("the capture was made without a recorder"));
  }
  return *shared.recorder;
}

void DumpFlight(const Capture& self, const std::string& path) {
  Check(Unlocked([&recorder = RecorderOf(self), &path] { return recorder.Dump(path); }));
}

void CheckRecorder(const Capture& self) {
  const std::string stopped = RecorderOf(self).stopped();
  if (!stopped.empty()) Raise(absl::DataLossError(stopped));
}

// ---- rows

waymark::TakenRows TakeRows(const Capture& self, nb::handle block_ids, Int64<"tokens"> tokens,
                            Int64<"first"> first, Uint64<"last_step"> last_step,
                            nb::handle key_list, nb::handle version) {
  SharedCapture& shared = self.open();
  const Blocks blocks(block_ids, "blocks");
  const std::vector<waymark::BlockKey> keys = KeysOf(key_list);
  if (keys.size() > blocks.size()) {
    RaiseInvalid("keys: at most as many as blocks, got " + std::to_string(keys.size()) +
                 " keys of " + std::to_string(blocks.size()) + " blocks");
  }
  const EngineCall call(shared);
  const std::uint64_t present =
      version.is_none() ? shared.version : IntegerOf<std::uint64_t>(version, "version");
  return Value(shared.capture->Take(blocks.ids(), first, tokens, {last_step, keys}, present));
}

std::unique_ptr<Rows> ReadTaken(const waymark::TakenRows& taken, nb::handle timeout) {
  const std::int64_t ns = Nanoseconds(timeout);
  if (!taken.done()) {
    const absl::Status status =
        WaitInSlices(ns, [&](std::chrono::nanoseconds slice) { return taken.Wait(slice); });
    if (absl::IsDeadlineExceeded(status)) {
      Raise(absl::DeadlineExceededError(taken.Late(std::chrono::nanoseconds(ns))));
    }
  }
  return std::make_unique<Rows>(Value(taken.rows()));
}

void WhenDone(const waymark::TakenRows& taken, nb::object function) {
  // Released with the GIL, by whoever calls it last.
  const auto call = std::make_shared<nb::object>(std::move(function));
  taken.WhenDone([call]() mutable {
    const Callback python;
    if (!python) return void(call->release());  // the interpreter exits: the object stays
    PyObject* result = nullptr;
    // It may release the GIL, and want it back when the interpreter goes down.
    TakeGil([&] { result = PyObject_CallNoArgs(call->ptr()); });
    if (result == nullptr) PyErr_WriteUnraisable(call->ptr());
    Py_XDECREF(result);
    call->reset();
  });
}

void BindStats(nb::module_& module) {
  auto stats = BindCounters<Stats>(
      module, "StoreStats",
      "Counters over the life of the store. Times in nanoseconds, sizes in bytes.",
      {WAYMARK_STORE_COUNTERS(WAYMARK_COUNTER_OF)});
  stats
      .def_prop_ro(
          "rows_missing",
          [](const Stats& self) {
            nb::list rows;
            for (const std::uint64_t count : self.rows_missing)
              rows.append(count);
            return nb::tuple(rows);
          },
          nb::sig("def rows_missing(self) -> tuple[int, ...]"),
          "Rows that became missing, by number of Reason.")
      .def_prop_ro(
          "missing",
          [](const Stats& self) {
            const nb::object reason = nb::module_::import_("waymark._types").attr("Reason");
            nb::dict out;
            for (int i = 0; i < waymark::kNumStoreReasons; ++i) {
              const std::uint64_t rows = self.rows_missing[static_cast<std::size_t>(i)];
              if (rows != 0) out[reason(i)] = rows;
            }
            return out;
          },
          nb::sig("def missing(self) -> dict[waymark._types.Reason, int]"),
          "rows_missing by Reason, without zeros.")
      .def("__str__", &Stats::ToString);
#define WAYMARK_MEASURE(name, value, meaning) \
  stats.def_prop_ro(                          \
      #name, [](const Stats& self) { return self.value; }, meaning);
  WAYMARK_STORE_MEASURES(WAYMARK_MEASURE)
#undef WAYMARK_MEASURE
}

void BindRows(nb::module_& module, nb::class_<Capture>& capture) {
  nb::class_<waymark::TakenRows>(module, "TakenRows")
      .def("done", &waymark::TakenRows::done)
      .def("_result", &ReadTaken, "timeout"_a.none(),
           nb::sig("def _result(self, timeout: float | None) -> Rows"))
      .def("_when_done", &WhenDone, "function"_a);
  capture.def("_take", &TakeRows, "blocks"_a, "tokens"_a, "first"_a, "last_step"_a, "keys"_a.none(),
              "version"_a.none());
}

void BindState(nb::class_<Capture>& capture) {
  capture
      .def(
          "stats", [](const Capture& self) { return self.here().store().GetStats(); },
          "The counters, as far as the store's thread has come. Any thread.")
      .def(
          "check", [](const Capture& self) { Check(self.open().store().status()); },
          "Raises the reason if the store has failed, or FailedPreconditionError in a forked "
          "child.\n\n"
          "A store fails by an exception in its own work: ResourceExhaustedError if there was no "
          "memory. It then returns no row of its blocks any more: rows that have not landed, and "
          "those that are taken later, are missing (capacity), and wait_idle() raises the reason. "
          "All else works as before, so that the engine runs on. Any thread.")
      .def(
          "_layer_stats",
          [](const Capture& self) {
            nb::list layers;
            for (const auto& layer : self.here().capture->session().GetStats().layers) {
              layers.append(nb::make_tuple(layer.layer_id, layer.module, layer.rows_silent,
                                           layer.rows_invalid));
            }
            return layers;
          },
          nb::sig("def _layer_stats(self) -> list[tuple[int, str, int, int]]"))
      .def(
          "gather_stats",
          [](const Capture& self) {
            const waymark::CaptureStats stats = self.here().capture->session().GetStats();
            return nb::make_tuple(stats.gathers, stats.gathers_failed, stats.parts_missing);
          },
          nb::sig("def gather_stats(self) -> tuple[int, int, int]"),
          "With row_gather: steps whose rows were exchanged, steps whose all_gather failed, and "
          "parts of other ranks that had no rows. Any thread.")
      .def_prop_ro(
          "_shape",
          [](const Capture& self) {
            const waymark::StoreOptions& options = self.open().store().options();
            return ShapeTuple(options.shape, options.block_tokens, options.num_blocks);
          },
          nb::sig("def _shape(self) -> " WAYMARK_SHAPE))
      .def("_name_layer",
           [](const Capture& self, Int32<"layer"> layer, std::string name) {
             Check(self.open().capture->NameLayer(layer, std::move(name)));
           })
      .def("_take_findings", &TakeFindings,
           nb::sig("def _take_findings(self) -> "
                   "list[tuple[int, int, int, int, int, bool, float, str, bool, int, int]]"))
      .def("_dump", &DumpFlight, "path"_a)
      .def("check_recorder", &CheckRecorder,
           "Raises DataLossError with the reason if the recorder has stopped. Any thread.");
}

}  // namespace

void SharedCapture::Close() {
  {
    const GilReleased released(Alive());
    capture.reset();
    recorder.reset();
  }
  GiveBack();
}

void SharedCapture::GiveBackAll() {
  LentIds* ids = done.exchange(nullptr, std::memory_order_acquire);
  while (ids != nullptr) {
    LentIds* const next = ids->next;
    delete ids;
    ids = next;
  }
}

void Capture::Report(std::span<const waymark::Event> events) const {
  SharedCapture& capture = open();
  const EngineCall call(capture);
  Check(capture.capture->Report(events));
}

WAYMARK_STEP_PATH SharedCapture& Capture::open() const {
  if (shared == nullptr) Raise(absl::FailedPreconditionError("the capture is closed"));
  shared->GiveBack();
  return *shared;
}

SharedCapture& Capture::here() const {
  SharedCapture& capture = open();
  if (capture.store().forked()) Check(capture.store().status());
  return capture;
}

WAYMARK_STEP_PATH bool EngineCall::Take() {
  const std::uint64_t self = PyThread_get_thread_ident();
  if (capture_.engine.load(std::memory_order_relaxed) == self) return true;
  std::uint64_t none = 0;
  outer_ = capture_.engine.compare_exchange_strong(none, self, std::memory_order_acquire);
  return outer_;
}

WAYMARK_STEP_PATH EngineCall::EngineCall(SharedCapture& capture) : capture_(capture) {
  if (Take()) return;
  Raise(absl::FailedPreconditionError(
      "one thread at a time may call the methods of the engine's thread, and another thread is in "
      "one of this capture"));
}

EngineCall::EngineCall(SharedCapture& capture, std::nothrow_t) : capture_(capture) {
  while (!(held_ = Take())) {
    if (!Alive()) return;
    const GilReleased released;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void BindCapture(nb::module_& module) {
  BindStats(module);
  nb::class_<Capture> type(module, "Capture");
  DefineEvents(type);
  BindSteps(module, type);
  BindRows(module, type);
  BindTier(module, type);
  BindState(type);
  type.def("__init__", &MakeCapture, "num_layers"_a, "top_k"_a, "num_experts"_a, "num_blocks"_a,
           "page_tokens"_a, "block_tokens"_a, "layer_ids"_a, "null_blocks"_a, "landing_cpus"_a,
           "options"_a, "recorder"_a.none(), "row_gather"_a.none(), "layers_first"_a,
           "extra_columns"_a, "engine"_a.none(), "tier"_a.none(),
           nb::sig("def __init__(self, num_layers: int, top_k: int, num_experts: int, "
                   "num_blocks: int, page_tokens: int, block_tokens: int, layer_ids: object, "
                   "null_blocks: object, landing_cpus: object, options: dict[str, str], "
                   "recorder: tuple[int, bool, object] | None, "
                   "row_gather: tuple[typing.Any, int, int] | None, layers_first: bool, "
                   "extra_columns: int, engine: str | None, tier: "
                   "tuple[typing.Any, ...] | None) -> "
                   "None"))
      .def(
          "schedule",
          [](const Capture& self, Uint64<"step"> step, Uint64<"version"> version) {
            SharedCapture& capture = self.open();
            const EngineCall call(capture);
            Check(capture.store().Schedule(waymark::StepId(step), version));
          },
          "step"_a, "version"_a,
          "Opens the schedule of `step` under weights `version`: events and rows that are taken "
          "belong to it until the step is told. Optional, for engines that report events before "
          "the step and whose weights change, or that schedule ahead: an earlier step is then "
          "refused (FailedPreconditionError). Engine's thread.")
      .def(
          "lose_rows",
          [](const Capture& self) {
            SharedCapture& capture = self.open();
            const EngineCall call(capture);
            Check(capture.capture->LoseRows());
          },
          "Nobody knows what the engine did to its blocks: events were lost on their way to this "
          "process, or a forward wrote KV into blocks that are not known. All blocks lose their "
          "rows (capacity) and keep their users; what was taken before stays as it is. It takes "
          "effect in its place, like an event: call it before the next step is told, and before "
          "what is known is reported again. Engine's thread.")
      .def("covered_prefix", &CoveredPrefix, "blocks"_a, "rows"_a,
           "The number of leading rows of [0, rows) of the sequence in `blocks` that are valid, "
           "as far as the store's thread has come: a hint to one scheduler, since it may be late "
           "and differ from rank to rank. Rows beyond the blocks do not count. Any thread.")
      .def(
          "wait_idle", &WaitIdle, "timeout"_a = nb::none(),
          nb::sig("def wait_idle(self, timeout: float | None = None) -> None"),
          "Waits until every step told so far has ended, and the rows taken so far have been read, "
          "so that only blocks in use hold pages; rows by key may come later. A loop whose forward "
          "takes no time calls it. Releases the GIL. `timeout`: seconds, or None; "
          "DeadlineExceededError after it. Engine's thread.")
      .def_prop_ro(
          "last_step", [](const Capture& self) { return self.here().store().last_step().value(); },
          "The last step told; 0: none. Engine's thread.")
      .def_prop_ro(
          "closed", [](const Capture& self) { return self.shared == nullptr; },
          "Whether close() was called.")
      .def(
          "close",
          [](Capture& self) {
            if (self.shared == nullptr) return;
            const std::shared_ptr<SharedCapture> last = self.shared;
            const EngineCall call(*last);
            if (!call.outer()) {
              Raise(
                  absl::FailedPreconditionError("close() was called inside a call of the capture"));
            }
            self.shared.reset();
            last->Close();
          },
          "Ends the capture. Steps whose ids were set land first, and what was taken is read; "
          "steps "
          "that are open lose their rows. Engine's thread; no other thread may be in a call of "
          "it.");
}

}  // namespace waymark_python
