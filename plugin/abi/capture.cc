// The capture of the C ABI: its creation, its steps, its state.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

static_assert(static_cast<int>(LogLevel::kInfo) == WM_LOG_INFO &&
              static_cast<int>(LogLevel::kWarning) == WM_LOG_WARNING &&
              static_cast<int>(LogLevel::kError) == WM_LOG_ERROR);

// Makes a recorder for `store`, which records to it.
absl::StatusOr<std::unique_ptr<FlightRecorder>> MakeRecorder(const wm_recorder_options* given,
                                                             StoreOptions& store) {
  wm_recorder_options args = {};
  Arguments check;
  check.Struct(given, args, "recorder").Flags(args.flags, WM_RECORDER_IDS, "recorder.flags");
  check.Array(args.cpus, args.num_cpus, "recorder.cpus");
  if (!check.ok()) return check.status();
  RecorderOptions options;
  if (args.ring_bytes != 0) options.ring_bytes = args.ring_bytes;
  if ((args.flags & WM_RECORDER_IDS) != 0) options.rows = FlightRows::kIds;
  if (args.num_cpus != 0) options.cpus.assign(args.cpus, args.cpus + args.num_cpus);
  auto made = FlightRecorder::Create(store, options);
  if (made.ok()) store.flight = (*made)->sink();
  return made;
}

// Checks `given` and makes store options of it, without a recorder and a log. `args` is the copy.
absl::Status TakeStoreOptions(const wm_capture_options* given, wm_capture_options& args,
                              StoreOptions& to) {
  Arguments check;
  check.Struct(given, args, "options").Flags(args.flags, 0, "options.flags");
  check.Zero(args.reserved, "options.reserved");
  check.Array(args.layer_ids, args.num_layer_ids, "options.layer_ids");
  check.Array(args.null_blocks, args.num_null_blocks, "options.null_blocks");
  check.Array(args.landing_cpus, args.num_landing_cpus, "options.landing_cpus");
  check.Array(args.options, args.num_options, "options.options");
  if (check.ok() && args.num_layer_ids != 0) {
    check.InRange(static_cast<std::int64_t>(args.num_layer_ids), args.num_layers, args.num_layers,
                  "options.num_layer_ids");
  }
  if (!check.ok()) return check.status();
  to.shape.num_layers = args.num_layers;
  to.shape.top_k = args.top_k;
  to.shape.num_experts = args.num_experts;
  if (args.page_tokens != 0) to.shape.page_tokens = args.page_tokens;
  to.shape.layer_ids.assign(args.layer_ids, args.layer_ids + args.num_layer_ids);
  to.num_blocks = args.num_blocks;
  to.block_tokens = args.block_tokens;
  for (std::size_t i = 0; i < args.num_null_blocks; ++i)
    to.null_blocks.emplace_back(args.null_blocks[i]);
  to.landing_cpus.assign(args.landing_cpus, args.landing_cpus + args.num_landing_cpus);
  for (std::size_t i = 0; i < args.num_options; ++i) {
    const wm_option& option = args.options[i];
    const std::string name = absl::StrCat("options.options[", i, "]");
    check.Pointer(option.name, (name + ".name").c_str());
    check.Pointer(option.value, (name + ".value").c_str());
    if (!check.ok()) return check.status();
    if (absl::Status status = SetStoreOption(to, option.name, option.value); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

wm_status CaptureCreate(const wm_capture_options* given, wm_capture** out,
                        wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_capture_options args = {};
    Capture::Options options;
    Arguments check;
    if (CopyIn(given, args) && args.row_gather != nullptr) {
      options.row_gather = TakeCollective(args.row_gather, "options.row_gather", check);
    }
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    if (absl::Status status = TakeStoreOptions(given, args, options.store); !status.ok()) {
      return status;
    }
    options.extra_columns = args.extra_columns;
    options.engine = OrEmpty(args.engine);
    const auto owned = std::make_shared<OwnedCapture>();
    options.store.log = LogTo(args.log);
    if (args.recorder != nullptr) {
      auto recorder = MakeRecorder(args.recorder, options.store);
      if (!recorder.ok()) return recorder.status();
      owned->recorder = *std::move(recorder);
    }
    absl::StatusOr<std::unique_ptr<Capture>> capture = Capture::Create(options);
    if (!capture.ok()) return capture.status();
    owned->capture = *std::move(capture);
    const StoreOptions& made = owned->capture->store().options();
    auto object = std::make_unique<wm_capture>();
    object->recorder = owned->recorder.get();
    object->capture = {owned, owned->capture.get()};
    object->shape =
        std::make_unique<const LentShape>(made.shape, made.block_tokens, made.num_blocks);
    *out = object.release();
    return absl::OkStatus();
  });
}

// ---- the step path: allocates nothing

wm_status CaptureReport(wm_capture* capture, const wm_event* events, std::size_t num_events,
                        wm_code* code) noexcept {
  return StepCall(code, capture, [&]() -> wm_code {
    std::span<const Event> taken;
    const wm_code bad = TakeEvents(events, num_events, 1, taken);
    return bad.code != WM_OK ? bad : ToCode(capture->capture->Report(taken));
  });
}

wm_status CaptureStep(wm_capture* capture, const wm_step_batch* given, const wm_ids* ids,
                      wm_done done, wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    const DoneCallback call{done.function, done.context};
    PairRows rows;
    StepBatch batch;
    const wm_code bad = IsA(capture) ? TakeBatch(given, 1, rows, batch) : BadArgument(0);
    if (bad.code != WM_OK) {
      call();
      return bad;
    }
    StepIds of_step;
    wm_code refused = {};
    const bool has_ids = ids != nullptr && TakeIds(ids, 2, of_step, refused);
    StepCode why;
    const StepCode told = capture->capture->Step(batch, has_ids ? &of_step : nullptr, call, &why);
    if (!told.ok()) return ToCode(told);
    if (!why.ok()) refused = ToCode(why);
    if (refused.code != WM_OK) refused.code = WM_DATA_LOSS;
    return refused;
  });
}

wm_status CaptureLoseRows(wm_capture* capture, wm_code* code) noexcept {
  return StepCall(code, capture, [&] { return capture->capture->LoseRows(); });
}

wm_status CaptureSchedule(wm_capture* capture, std::uint64_t step, std::uint64_t version,
                          wm_code* code) noexcept {
  return StepCall(code, capture,
                  [&] { return capture->capture->store().Schedule(StepId(step), version); });
}

wm_status CaptureTell(wm_capture* capture, const wm_step_batch* given, wm_code* code) noexcept {
  return StepCall(code, capture, [&]() -> wm_code {
    PairRows rows;
    StepBatch batch;
    const wm_code bad = TakeBatch(given, 1, rows, batch);
    return bad.code != WM_OK ? bad : ToCode(capture->capture->Tell(batch));
  });
}

wm_status CaptureSetIds(wm_capture* capture, std::uint64_t step, const wm_ids* given, wm_done done,
                        wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    const DoneCallback call{done.function, done.context};
    StepIds ids;
    wm_code bad = BadArgument(0);
    if (!IsA(capture) || !TakeIds(given, 2, ids, bad)) {
      call();
      return bad;
    }
    return ToCode(capture->capture->SetIds(StepId(step), ids, call));
  });
}

wm_status CaptureLose(wm_capture* capture, std::uint64_t step, wm_code* code) noexcept {
  return StepCall(code, capture, [&] { return capture->capture->Lose(StepId(step)); });
}
wm_status CaptureNotRun(wm_capture* capture, std::uint64_t step, wm_code* code) noexcept {
  return StepCall(code, capture, [&] { return capture->capture->NotRun(StepId(step)); });
}

// ---- state

wm_status CaptureShape(const wm_capture* capture, wm_shape* out) noexcept {
  return Guard(nullptr, Arguments().Object(capture, "capture").OutStruct(out, "out"),
               [&] { CopyOut(capture->shape->get(), out); });
}

wm_status CaptureNameLayer(wm_capture* capture, std::int32_t layer, const char* name,
                           wm_message* why) noexcept {
  return Guard(why, Arguments().Object(capture, "capture").Pointer(name, "name"), [&] {
    const std::lock_guard<std::mutex> lock(capture->mutex);
    return capture->capture->NameLayer(layer, name);
  });
}

wm_status CaptureCoveredPrefix(const wm_capture* capture, const std::int32_t* blocks,
                               std::size_t num_blocks, std::int64_t rows,
                               std::int64_t* covered) noexcept {
  Arguments check;
  check.Object(capture, "capture").Array(blocks, num_blocks, "blocks");
  check.InRange(rows, 0, INT64_MAX, "rows").Pointer(covered, "covered");
  return Guard(nullptr, check, [&] {
    *covered = capture->capture->store().CoveredPrefix(
        {reinterpret_cast<const BlockId*>(blocks), num_blocks}, rows);
    return OfThisProcess(*capture);
  });
}

wm_status CaptureWaitIdle(wm_capture* capture, std::int64_t timeout_ns, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(capture, "capture"),
               [&] { return capture->capture->WaitIdle(Bounded(timeout_ns)); });
}

wm_status CaptureLastStep(const wm_capture* capture, std::uint64_t* step) noexcept {
  return Guard(nullptr, Arguments().Object(capture, "capture").Pointer(step, "step"), [&] {
    *step = capture->capture->store().last_step().value();
    return OfThisProcess(*capture);
  });
}

wm_status CaptureStatus(const wm_capture* capture, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(capture, "capture"), [&] {
    absl::Status status = capture->capture->store().status();
    return status.ok() ? capture->capture->session().status() : status;
  });
}

wm_status CaptureNextFinding(wm_capture* capture, wm_finding* out, wm_message* text) noexcept {
  Arguments check;
  check.Object(capture, "capture").OutStruct(out, "out");
  return Guard(text, check, [&]() -> absl::Status {
    if (absl::Status status = OfThisProcess(*capture); !status.ok()) return status;
    const std::lock_guard<std::mutex> lock(capture->mutex);
    std::deque<AuditFinding>& findings = capture->findings;
    if (findings.empty()) {
      const std::vector<AuditFinding> taken = capture->capture->store().TakeFindings();
      findings.assign(taken.begin(), taken.end());
    }
    if (findings.empty()) return absl::NotFoundError("every finding was returned");
    const AuditFinding& finding = findings.front();
    wm_finding to = {};
    to.block = finding.block;
    to.step = finding.step;
    to.kept_step = finding.kept_step;
    to.sealed_step = finding.sealed_step;
    to.rows = finding.rows;
    to.voided = finding.voided ? 1 : 0;
    to.agreement = finding.agreement;
    to.two_pages = finding.two_pages ? 1 : 0;
    to.pages = finding.pages;
    to.last_step = finding.last_step;
    WriteText(finding.ToString(), text);
    CopyOut(to, out);
    findings.pop_front();
    return absl::OkStatus();
  });
}

wm_status CaptureDump(wm_capture* capture, const char* path, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(capture, "capture").Pointer(path, "path"), [&] {
    if (capture->recorder == nullptr) {
      return absl::FailedPreconditionError("capture: must have been created with a recorder");
    }
    const std::lock_guard<std::mutex> lock(capture->dumping);
    return capture->recorder->Dump(path);
  });
}

}  // namespace

LentShape::LentShape(const RoutingShape& shape, std::int32_t block_tokens,
                     std::int32_t num_blocks) {
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer)
    layer_ids_.push_back(shape.layer_id(layer));
  shape_.num_layers = shape.num_layers;
  shape_.top_k = shape.top_k;
  shape_.num_experts = shape.num_experts;
  shape_.page_tokens = shape.page_tokens;
  shape_.block_tokens = block_tokens;
  shape_.num_blocks = num_blocks;
  shape_.id_bytes = static_cast<std::uint32_t>(shape.id_bytes());
  shape_.row_bytes = shape.row_bytes();
  shape_.layer_ids = layer_ids_.data();
}

void LogDiscard(void*, std::int32_t, const char*, std::size_t) noexcept {}

LogCallback LogTo(const wm_log& log) {
  if (log.function == nullptr) return {};
  if (log.function == &LogDiscard) return LogCallback::Discard();
  const auto kept = std::make_shared<wm_log>(log);
  return {[](void* context, LogLevel level, const char* text, std::size_t size) {
            const auto& to = *static_cast<const wm_log*>(context);
            to.function(to.context, static_cast<std::int32_t>(level), text, size);
          },
          kept.get(), kept};
}

absl::Status OfThisProcess(const wm_capture& capture) {
  const RoutingStore& store = capture.capture->store();
  return store.forked() ? store.status() : absl::OkStatus();
}

void FillCapture(wm_api_v1& api) {
  api.capture_create = &CaptureCreate;
  api.capture_release = &Release<wm_capture>;
  api.capture_report = &CaptureReport;
  api.capture_step = &CaptureStep;
  api.capture_schedule = &CaptureSchedule;
  api.capture_tell = &CaptureTell;
  api.capture_set_ids = &CaptureSetIds;
  api.capture_lose = &CaptureLose;
  api.capture_not_run = &CaptureNotRun;
  api.capture_lose_rows = &CaptureLoseRows;
  api.capture_shape = &CaptureShape;
  api.capture_name_layer = &CaptureNameLayer;
  api.capture_covered_prefix = &CaptureCoveredPrefix;
  api.capture_wait_idle = &CaptureWaitIdle;
  api.capture_last_step = &CaptureLastStep;
  api.capture_status = &CaptureStatus;
  api.capture_next_finding = &CaptureNextFinding;
  api.capture_dump = &CaptureDump;
  api.log_discard = &LogDiscard;
}

}  // namespace waymark::abi
