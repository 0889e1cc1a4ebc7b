// Store: the rows of every KV block of an engine, and its flight recorder.
#include <algorithm>

#include "plugin/python/core.h"
#include "plugin/python/events.h"
#include "plugin/python/module.h"

namespace waymark_python {
namespace {

using nb::literals::operator""_a;

std::uint64_t ThisThread() {
  return PyThread_get_thread_ident();
}

void Make(Store* self, Int32<"num_layers"> num_layers, Int32<"top_k"> top_k,
          Int32<"num_experts"> num_experts, Int32<"num_blocks"> num_blocks,
          Int32<"page_tokens"> page_tokens, Int32<"block_tokens"> block_tokens,
          nb::handle layer_ids, nb::handle null_blocks, Uint32<"num_pages"> num_pages,
          Uint32<"max_steps_in_flight"> max_steps_in_flight, Uint32<"max_step_rows"> max_step_rows,
          bool device_slots, bool landing_caller, bool audit, double audit_threshold,
          Uint64<"key_seed"> key_seed, nb::handle landing_cpus, bool record,
          Uint64<"ring_bytes"> ring_bytes, bool record_ids, nb::handle record_cpus,
          Uint64<"log_bytes"> log_bytes, Uint32<"max_tagged_snapshots"> max_tagged_snapshots,
          nb::handle spare_pages, nb::handle teardown_timeout, nb::handle overdue_after,
          nb::handle ids_timeout, Uint64<"ahead_bytes"> ahead_bytes) {
  const Integers<std::int32_t> layers(layer_ids, "layer_ids");
  const Integers<std::int32_t> nulls(null_blocks, "null_blocks");
  const Integers<std::int32_t> cpus(landing_cpus, "landing_cpus");
  const Integers<std::int32_t> recorder_cpus(record_cpus, "recorder.cpus");
  auto shared = std::make_shared<SharedStore>();

  wm_ext_log log = {};
  log.head.struct_size = sizeof(log);
  log.head.type = WM_EXT_LOG;
  log.function = &LogLines::Log;
  log.context = shared->log.get();

  wm_store_options options = {};
  options.struct_size = sizeof(options);
  options.flags = (device_slots ? WM_STORE_DEVICE_SLOTS : 0) | (audit ? 0 : WM_STORE_NO_AUDIT);
  options.ext = &log.head;
  options.num_layers = num_layers;
  options.top_k = top_k;
  options.num_experts = num_experts;
  options.num_blocks = num_blocks;
  options.page_tokens = page_tokens;
  options.block_tokens = block_tokens;
  options.layer_ids = layers.data();
  options.num_layer_ids = layers.size();
  options.null_blocks = nulls.data();
  options.num_null_blocks = nulls.size();
  options.num_pages = num_pages;
  if (!spare_pages.is_none()) {
    options.spare_pages = IntegerOf<std::uint32_t>(spare_pages, "spare_pages");
    if (options.spare_pages == 0) options.spare_pages = WM_NO_SPARE_PAGES;
  }
  options.max_steps_in_flight = max_steps_in_flight;
  options.max_step_rows = max_step_rows;
  options.landing = landing_caller ? WM_LANDING_CALLER : WM_LANDING_THREAD;
  options.audit_threshold = audit_threshold;
  options.key_seed = key_seed;
  options.landing_cpus = cpus.data();
  options.num_landing_cpus = cpus.size();
  options.log_bytes = log_bytes;
  options.max_tagged_snapshots = max_tagged_snapshots;
  // 0 is the default of the library.
  const std::int64_t teardown = Nanoseconds(teardown_timeout, "teardown_timeout");
  options.teardown_timeout_ns = teardown < 0 ? INT64_MAX : std::max<std::int64_t>(teardown, 1);
  const std::int64_t overdue = Nanoseconds(overdue_after, "overdue_after");
  options.overdue_after_ns = overdue < 0 ? -1 : std::max<std::int64_t>(overdue, 1);
  const std::int64_t timeout = Nanoseconds(ids_timeout, "ids_timeout");
  options.ids_timeout_ns = timeout < 0 ? -1 : std::max<std::int64_t>(timeout, 1);
  options.ahead_bytes = ahead_bytes == 0 ? WM_NO_FETCH_AHEAD : ahead_bytes;

  Message why;
  wm_status status = WM_OK;
  {
    const GilReleased released;
    if (record) {
      wm_recorder_options recorder = {};
      recorder.struct_size = sizeof(recorder);
      recorder.flags = record_ids ? WM_RECORDER_IDS : 0;
      recorder.ring_bytes = ring_bytes;
      recorder.cpus = recorder_cpus.data();
      recorder.num_cpus = recorder_cpus.size();
      status = Api().recorder_create(&options, &recorder, &shared->recorder, why.get());
      options.recorder = shared->recorder;
    }
    if (status == WM_OK) status = Api().store_create(&options, &shared->store, why.get());
  }
  Check(status, why);
  shared->shape.struct_size = sizeof(shared->shape);
  const wm_status shaped = Api().store_shape(shared->store, &shared->shape);
  if (shaped != WM_OK) Raise(shaped, "store_shape");
  new (self) Store{std::move(shared)};
}

void Schedule(const Store& self, Uint64<"step"> step, Uint64<"version"> version) {
  SharedStore& store = self.open();
  const EngineCall call(store);
  wm_code code = {};
  const wm_status status = Api().store_schedule(store.store, step, version, &code);
  CheckAppended(code, status);
}

void ReportMessage(const Store& self, nb::handle message) {
  SharedStore& store = self.open();
  const EngineCall call(store);
  ReportTo(store, message);
}

void ForgetTag(const Store& self, Uint64<"tag"> tag) {
  const wm_status status = Api().store_forget_tag(self.open().store, tag);
  if (status != WM_OK) Raise(status, "forget_tag");
}

std::int64_t CoveredPrefix(const Store& self, nb::handle block_ids, Int64<"rows"> rows) {
  SharedStore& store = self.open();
  const Integers<std::int32_t> blocks(block_ids, "blocks");
  const EngineCall call(store);
  std::int64_t covered = 0;
  const wm_status status =
      Api().store_covered_prefix(store.store, blocks.data(), blocks.size(), rows, &covered);
  if (status != WM_OK) {
    Raise(status, "rows: at least 0, got " + std::to_string(rows));
  }
  return covered;
}

void WaitIdle(const Store& self, nb::handle timeout) {
  SharedStore& store = self.open();
  const std::int64_t ns = Nanoseconds(timeout);
  Message why;
  wm_status status;
  {
    const EngineCall call(store);
    status = WaitInSlices(ns, [&](std::int64_t slice) {
      return Api().store_wait_idle(store.store, slice, why.get());
    });
  }
  store.GiveBack();
  if (status == WM_DEADLINE_EXCEEDED) RaiseDeadline("steps have not ended", timeout);
  Check(status, why);
}

bool LandOne(const Store& self) {
  SharedStore& store = self.open();
  const EngineCall call(store);
  wm_status status;
  {
    const GilReleased released;
    status = Api().store_land_one(store.store);
  }
  if (status == WM_NOT_FOUND) return false;
  if (status != WM_OK) Raise(status, "land_one: of a store made with landing=\"caller\"");
  return true;
}

void Land(const Store& self, Uint64<"step"> step) {
  SharedStore& store = self.open();
  const EngineCall call(store);
  wm_status status;
  {
    const GilReleased released;
    status = Api().store_land(store.store, step);
  }
  if (status == WM_NOT_FOUND) {
    Raise(status, "step: submitted and not landed, got " + std::to_string(step));
  }
  if (status != WM_OK) Raise(status, "land: of a store made with landing=\"caller\"");
}

std::uint64_t LastStep(const Store& self) {
  SharedStore& store = self.open();
  const EngineCall call(store);
  std::uint64_t step = 0;
  const wm_status status = Api().store_last_step(store.store, &step);
  if (status != WM_OK) Raise(status, "last_step");
  return step;
}

nb::dict Stats(const Store& self) {
  wm_store_stats stats = {};
  stats.struct_size = sizeof(stats);
  const wm_status status = Api().store_stats(self.open().store, &stats);
  if (status != WM_OK) Raise(status, "stats");
  nb::dict out;
#define WAYMARK_STAT(name) out[#name] = stats.name;
  WAYMARK_STAT(steps_begun)
  WAYMARK_STAT(steps_landed)
  WAYMARK_STAT(steps_dropped)
  WAYMARK_STAT(steps_cancelled)
  WAYMARK_STAT(steps_refused_ring)
  WAYMARK_STAT(steps_ahead)
  WAYMARK_STAT(rows_landed)
  WAYMARK_STAT(rows_ignored)
  WAYMARK_STAT(rows_not_asked)
  WAYMARK_STAT(rows_padding)
  WAYMARK_STAT(rows_outside)
  WAYMARK_STAT(events)
  WAYMARK_STAT(events_on_null_blocks)
  WAYMARK_STAT(releases_below_zero)
  WAYMARK_STAT(hits_by_key)
  WAYMARK_STAT(second_seals)
  WAYMARK_STAT(pages)
  WAYMARK_STAT(pages_in_use)
  WAYMARK_STAT(pages_in_use_peak)
  WAYMARK_STAT(spare_pages)
  WAYMARK_STAT(pages_detached)
  WAYMARK_STAT(pages_detached_peak)
  WAYMARK_STAT(rows_without_page)
  WAYMARK_STAT(evictions)
  WAYMARK_STAT(copies_on_write)
  WAYMARK_STAT(no_page)
  WAYMARK_STAT(bytes)
  WAYMARK_STAT(bytes_touched_peak)
  WAYMARK_STAT(audited_rows)
  WAYMARK_STAT(audit_disagreements)
  WAYMARK_STAT(audit_voided_pages)
  WAYMARK_STAT(audit_voided_rows)
  WAYMARK_STAT(audit_agreement_sum)
  WAYMARK_STAT(snapshots_taken)
  WAYMARK_STAT(snapshots_live)
  WAYMARK_STAT(landing_lag_count)
  WAYMARK_STAT(landing_lag_p50_ns)
  WAYMARK_STAT(landing_lag_p99_ns)
  WAYMARK_STAT(log_records)
  WAYMARK_STAT(log_losses)
  WAYMARK_STAT(snapshots_lost)
  WAYMARK_STAT(snapshots_given_up)
  WAYMARK_STAT(log_lag_count)
  WAYMARK_STAT(log_lag_p50_ns)
  WAYMARK_STAT(log_lag_p99_ns)
  WAYMARK_STAT(exceptions)
  WAYMARK_STAT(steps_overdue)
#undef WAYMARK_STAT
  nb::list missing;
  for (int reason = 0; reason < WM_NUM_REASONS; ++reason)
    missing.append(stats.rows_missing[reason]);
  out["rows_missing"] = nb::tuple(missing);
  return out;
}

// (block, step, kept_step, sealed_step, rows, voided, agreement, text, two_pages, pages, last_step)
// of the next one, or None.
nb::object NextFinding(const Store& self) {
  wm_finding finding = {};
  finding.struct_size = sizeof(finding);
  Message text;
  const wm_status status = Api().store_next_finding(self.open().store, &finding, text.get());
  if (status == WM_NOT_FOUND) return nb::none();
  Check(status, text);
  return nb::make_tuple(finding.block, finding.step, finding.kept_step, finding.sealed_step,
                        finding.rows, finding.voided != 0, finding.agreement, text.text(),
                        finding.two_pages != 0, finding.pages, finding.last_step);
}

// [(level, text)], oldest first, and how many older ones were lost.
nb::tuple TakeLog(const Store& self) {
  SharedStore& store = self.open();
  std::deque<std::pair<std::int32_t, std::string>> lines;
  std::uint64_t lost = 0;
  {
    const std::lock_guard lock(store.log->mutex);
    lines.swap(store.log->lines);
    std::swap(lost, store.log->lost);
  }
  nb::list out;
  for (const auto& [level, text] : lines) {
    // What is cut in the middle of a character still is a line.
    const nb::object line = nb::steal(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    out.append(nb::make_tuple(level, line));
  }
  return nb::make_tuple(out, lost);
}

void CheckStore(const Store& self) {
  Message why;
  Check(Api().store_status(self.open().store, why.get()), why);
}

void Close(Store& self) {
  if (self.shared == nullptr) return;
  self.open();
  const std::shared_ptr<SharedStore> last = std::move(self.shared);
}

void DumpFlight(const Store& self, const char* path) {
  SharedStore& store = self.open();
  Message why;
  wm_status status;
  {
    const GilReleased released;
    status = Api().recorder_dump(store.recorder, path, why.get());
  }
  Check(status, why);
}

void CheckRecorder(const Store& self) {
  Message why;
  Check(Api().recorder_status(self.open().recorder, why.get()), why);
}

}  // namespace

void ReportTo(SharedStore& store, nb::handle message) {
  const Bytes bytes = ReadableBytes(message, "message");
  Message why;
  Check(Api().store_report_message(store.store, bytes.data, bytes.size, why.get()), why);
}

SharedStore::~SharedStore() {
  {
    const GilReleased released(Alive());
    Api().store_release(store);
    Api().recorder_release(recorder);
  }
  GiveBack();
}

void SharedStore::GiveBackAll() {
  LentIds* ids = done.exchange(nullptr, std::memory_order_acquire);
  while (ids != nullptr) {
    LentIds* const next = ids->next;
    delete ids;
    ids = next;
  }
}

void LogLines::Log(void* context, std::int32_t level, const char* text, std::size_t size) {
  auto& self = *static_cast<LogLines*>(context);
  try {
    const std::lock_guard lock(self.mutex);
    if (self.lines.size() == kMost) {
      self.lines.pop_front();
      ++self.lost;
    }
    self.lines.emplace_back(level, std::string(text, size));
  } catch (...) {  // no memory for a line: it is lost
  }
}

void Store::Report(const wm_event* events, std::size_t num_events) const {
  SharedStore& store = open();
  const EngineCall call(store);
  wm_code code = {};
  const wm_status status = Api().store_report(store.store, events, num_events, &code);
  CheckAppended(code, status);
}

SharedStore& Store::open() const {
  if (shared == nullptr) Raise(WM_FAILED_PRECONDITION, "the store is closed");
  shared->GiveBack();
  return *shared;
}

bool EngineCall::Take() {
  const std::uint64_t self = ThisThread();
  if (store_.engine.load(std::memory_order_relaxed) == self) return true;
  std::uint64_t none = 0;
  outer_ = store_.engine.compare_exchange_strong(none, self, std::memory_order_acquire);
  return outer_;
}

EngineCall::EngineCall(SharedStore& store) : store_(store) {
  if (!Take()) {
    Raise(WM_FAILED_PRECONDITION,
          "one thread at a time may call the methods of the engine's thread, and another "
          "thread is in one of this store");
  }
}

EngineCall::EngineCall(SharedStore& store, std::nothrow_t) : store_(store) {
  while (!(held_ = Take())) {
    if (!Alive()) return;
    const GilReleased released;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

nb::tuple ShapeTuple(const wm_shape& shape) {
  nb::list layer_ids;
  for (int layer = 0; layer < shape.num_layers; ++layer)
    layer_ids.append(shape.layer_ids[layer]);
  return nb::make_tuple(shape.num_layers, shape.top_k, shape.num_experts, shape.page_tokens,
                        shape.block_tokens, shape.num_blocks, nb::tuple(layer_ids));
}

void BindStore(nb::module_& module) {
  nb::class_<Store> type(module, "Store");
  DefineEvents(type);
  type.def("__init__", &Make, "num_layers"_a, "top_k"_a, "num_experts"_a, "num_blocks"_a,
           "page_tokens"_a, "block_tokens"_a, "layer_ids"_a, "null_blocks"_a, "num_pages"_a,
           "max_steps_in_flight"_a, "max_step_rows"_a, "device_slots"_a, "landing_caller"_a,
           "audit"_a, "audit_threshold"_a, "key_seed"_a, "landing_cpus"_a, "record"_a,
           "ring_bytes"_a, "record_ids"_a, "record_cpus"_a, "log_bytes"_a, "max_tagged_snapshots"_a,
           "spare_pages"_a.none(), "teardown_timeout"_a.none(), "overdue_after"_a.none(),
           "ids_timeout"_a.none(), "ahead_bytes"_a)
      .def("schedule", &Schedule, "step"_a, "version"_a,
           "Opens the schedule of `step` under weights `version`: events and snapshots belong to "
           "it until the step is begun. Optional, for engines that report events before the step "
           "begins and whose weights change, or that schedule ahead: begin_step of an earlier step "
           "is then refused (FailedPreconditionError). Engine's thread.")
      .def(
          "report_message", &ReportMessage, "message"_a,
          "Reports a message of a ScheduleWriter in the scheduler's process, when its schedule is "
          "about to be begun.\n\n"
          "A message that was received before is ignored. If messages are missing before it, or it "
          "comes from another sender, all blocks lose their rows (capacity) before it is applied; "
          "tagged snapshots of a former sender are released. InvalidArgumentError (also if its "
          "step was begun before), AlreadyExistsError (a tag is in use) and "
          "ResourceExhaustedError: the message is refused, or the log is full: nothing of a "
          "refused message is applied, no snapshot can be taken under a tag that it names, and all "
          "blocks lose their rows. Engine's thread.")
      .def("forget_tag", &ForgetTag, "tag"_a,
           "Releases the snapshot that a message requested under `tag`, if there is one. Any "
           "thread.")
      .def("covered_prefix", &CoveredPrefix, "blocks"_a, "rows"_a,
           "The number of leading rows of [0, rows) of the sequence in `blocks` that are valid, "
           "as far as the store's thread has come: a hint to one scheduler, since it may be late "
           "and differ from rank to rank. Rows beyond the blocks do not count. Any thread.")
      .def("wait_idle", &WaitIdle, "timeout"_a = nb::none(),
           nb::sig("def wait_idle(self, timeout: float | None = None) -> None"),
           "Waits until every step begun so far has ended; releases the GIL. `timeout`: "
           "seconds, or None; DeadlineExceededError after it. With landing=\"caller\" it lands "
           "submitted steps and never waits. Engine's thread.")
      .def("land_one", &LandOne,
           "landing=\"caller\" only: lands the step that was submitted first; False if there is "
           "none. Engine's thread.")
      .def("land", &Land, "step"_a,
           "landing=\"caller\" only: lands exactly `step`. NotFoundError if it is not "
           "submitted, or has landed. Engine's thread.")
      .def_prop_ro("last_step", &LastStep, "The last step begun; 0: none. Engine's thread.")
      .def_prop_ro(
          "closed", [](const Store& self) { return self.shared == nullptr; },
          "Whether close() was called.")
      .def("close", &Close,
           "Releases the store. Submitted steps land first; snapshots stay readable; a session "
           "keeps its store. Engine's thread; no other thread may be in a call of the store.")
      .def(
          "stats_text",
          [](const Store& self) {
            SharedStore& store = self.open();
            return Text(
                [&](wm_message* text) { return Api().store_stats_text(store.store, text); });
          },
          "The main counters, one per line. Any thread.")
      .def("check", &CheckStore,
           "Raises the reason if the store has failed, or FailedPreconditionError in a forked "
           "child.\n\n"
           "A store fails by an exception in its own work: ResourceExhaustedError if there was no "
           "memory. It then returns no row of its blocks any more: rows that have not landed, and "
           "those of later snapshots, are missing (capacity), and wait_idle() raises the reason. "
           "All else works as before, so that the engine runs on. Any thread.")
      .def_prop_ro(
          "_shape", [](const Store& self) { return ShapeTuple(self.open().shape); },
          nb::sig("def _shape(self) -> " WAYMARK_SHAPE))
      .def("_stats", &Stats, nb::sig("def _stats(self) -> dict[str, typing.Any]"))
      .def("_next_finding", &NextFinding,
           nb::sig("def _next_finding(self) -> "
                   "tuple[int, int, int, int, int, bool, float, str, bool, int, int] | None"))
      .def("_take_log", &TakeLog,
           nb::sig("def _take_log(self) -> tuple[list[tuple[int, str]], int]"))
      .def_prop_ro("_recording", [](const Store& self) { return self.open().recorder != nullptr; })
      .def("_dump", &DumpFlight, "path"_a)
      .def("_check_recorder", &CheckRecorder);
  BindCapture(module, type);
}

}  // namespace waymark_python
