// The session of the C ABI, which captures by views.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/abi/fill.h"
#include "plugin/capture/self_test.h"
#include "plugin/capture/staged_transport.h"
#ifdef WAYMARK_HAS_CUDA
#include "plugin/capture/cuda_device.h"
#endif

namespace waymark::abi {
namespace {

static_assert(static_cast<int>(LayerFault::kSilent) == WM_FAULT_SILENT &&
              static_cast<int>(LayerFault::kAllZero) == WM_FAULT_ALL_ZERO &&
              static_cast<int>(LayerFault::kOutOfRange) == WM_FAULT_OUT_OF_RANGE &&
              static_cast<int>(LayerFault::kRepeating) == WM_FAULT_REPEATING);

absl::StatusOr<TransportFactory> TransportOf(const wm_session_options& args) {
  const bool one_view = (args.flags & WM_SESSION_ONE_VIEW) != 0;
  if (args.transport == WM_TRANSPORT_HOST) {
    if (!one_view) return TransportFactory();
    return absl::InvalidArgumentError(
        "options.flags: WM_SESSION_ONE_VIEW must come with a device's transport");
  }
#ifdef WAYMARK_HAS_CUDA
  absl::StatusOr<std::shared_ptr<CudaDevice>> device = CudaDevice::Create(args.device_ordinal);
  if (!device.ok()) return device.status();
  return StagedTransport::Factory({.device = *std::move(device), .one_view = one_view});
#else
  return absl::UnimplementedError(
      "options.transport: WM_TRANSPORT_CUDA must have been built in, and was not");
#endif
}

wm_status SessionCreate(const wm_session_options* given, wm_session** out,
                        wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_session_options args = {};
    CaptureOptions options;
    Arguments check;
    if (CopyIn(given, args) && args.row_gather != nullptr) {
      options.row_gather = TakeCollective(args.row_gather, "options.row_gather", check);
    }
    check.Struct(given, args, "options").Flags(args.flags, WM_SESSION_ONE_VIEW, "options.flags");
    check.Object(args.capture, "options.capture");
    check.InRange(args.transport, WM_TRANSPORT_HOST, WM_TRANSPORT_CUDA, "options.transport");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    absl::StatusOr<TransportFactory> transport = TransportOf(args);
    if (!transport.ok()) return transport.status();
    options.store = &args.capture->capture->store();
    options.max_rows = args.max_rows;
    options.extra_columns = args.capture->capture->session().extra_columns();
    if (args.num_buffers != 0) options.num_buffers = args.num_buffers;
    options.transport = *std::move(transport);
    auto object = std::make_unique<wm_session>(*args.capture);
    absl::StatusOr<std::unique_ptr<CaptureSession>> session = CaptureSession::Create(options);
    if (!session.ok()) return session.status();
    object->session = *std::move(session);
    *out = object.release();
    return absl::OkStatus();
  });
}

wm_status SessionBindLayer(wm_session* session, std::int32_t layer, const char* module,
                           wm_message* why) noexcept {
  return Guard(why, Arguments().Object(session, "session").Pointer(module, "module"), [&] {
    const std::lock_guard<std::mutex> lock(session->bindings);
    return session->session->BindLayer(layer, module);
  });
}

// ---- the step path: allocates nothing

wm_view ToView(const CaptureView& from) {
  wm_view view = {};
  view.data = from.data;
  view.layer_stride = from.layer_stride;
  view.num_layers = from.num_layers;
  view.max_rows = from.max_rows;
  view.top_k = from.top_k;
  view.buffer = from.buffer;
  view.step = from.step;
  return view;
}

wm_status SessionSetStream(wm_session* session, void* stream) noexcept {
  return StepCall(nullptr, session, [&] { session->session->SetStream(stream); });
}

wm_status SessionBeginStep(wm_session* session, const wm_step_batch* given,
                           std::int32_t written_rows, wm_code* code) noexcept {
  return StepCall(code, session, [&]() -> wm_code {
    PairRows rows;
    StepBatch batch;
    const wm_code bad = TakeBatch(given, 1, rows, batch);
    return bad.code != WM_OK ? bad : ToCode(session->session->BeginStep(batch, written_rows));
  });
}

wm_status SessionView(wm_session* session, std::uint64_t step, wm_view* view) noexcept {
  return StepCall(nullptr, session, [&]() -> wm_code {
    if (view == nullptr) return BadArgument(2);
    *view = ToView(session->session->view(StepId(step)));
    return {};
  });
}

wm_status SessionHandOver(wm_session* session, const wm_view* view, std::int32_t layer,
                          const wm_ids* given, wm_code* code) noexcept {
  return StepCall(code, session, [&]() -> wm_code {
    if (view == nullptr || view->reserved != 0) return BadArgument(1);
    StepIds ids;
    wm_code bad = {};
    if (!TakeIds(given, 3, ids, bad)) return bad;
    CaptureView to;
    to.buffer = view->buffer;
    to.step = view->step;
    return ToCode(session->session->HandOver(to, layer, ids));
  });
}

wm_status SessionSubmit(wm_session* session, std::uint64_t step, std::int32_t written_rows,
                        wm_code* code) noexcept {
  return StepCall(code, session,
                  [&] { return session->session->Submit(StepId(step), written_rows); });
}

wm_status SessionDrop(wm_session* session, std::uint64_t step, wm_code* code) noexcept {
  return StepCall(code, session, [&] { return session->session->Drop(StepId(step)); });
}
wm_status SessionLose(wm_session* session, std::uint64_t step, wm_code* code) noexcept {
  return StepCall(code, session, [&] { return session->session->Lose(StepId(step)); });
}
wm_status SessionCancel(wm_session* session, std::uint64_t step, wm_code* code) noexcept {
  return StepCall(code, session, [&] { return session->session->Cancel(StepId(step)); });
}

wm_status SessionDiscard(wm_session* session, std::int32_t written_rows) noexcept {
  return StepCall(nullptr, session, [&]() -> wm_code {
    if (written_rows < 0) return BadArgument(1, written_rows);
    session->session->Discard(written_rows);
    return {};
  });
}

// ---- beside it

wm_status SessionSelfTest(wm_session* session, std::int32_t rows, wm_forward forward,
                          wm_layer_finding* findings, std::size_t capacity, std::size_t* count,
                          wm_message* text) noexcept {
  Arguments check;
  check.Object(session, "session").Array(findings, capacity, "findings");
  check.That(forward.function != nullptr, "forward.function", "must not be null");
  check.Pointer(count, "count");
  return Guard(text, check, [&]() -> absl::Status {
    const absl::StatusOr<SelfTestReport> report = RunSelfTest(
        *session->session, rows, [&forward](const CaptureView& of, std::int32_t view_rows) {
          const wm_view view = ToView(of);
          const wm_status ran = forward.function(forward.context, &view, view_rows);
          if (ran == WM_OK) return absl::OkStatus();
          return absl::Status(ran > WM_OK && ran <= WM_DATA_LOSS
                                  ? static_cast<absl::StatusCode>(ran)
                                  : absl::StatusCode::kUnknown,
                              "forward: it returned " + std::to_string(ran));
        });
    if (!report.ok()) return report.status();
    WriteText(report->ToString(), text);
    for (std::size_t i = 0; i < std::min(capacity, report->findings.size()); ++i) {
      const LayerFinding& from = report->findings[i];
      findings[i] = {from.layer, from.layer_id,  static_cast<std::int32_t>(from.fault),
                     from.rows,  from.first_row, 0};
    }
    *count = report->findings.size();
    return absl::OkStatus();
  });
}

wm_status SessionStatus(const wm_session* session, wm_message* why) noexcept {
  return Guard(why, Arguments().Object(session, "session"),
               [&] { return session->session->status(); });
}

CaptureStats StatsOf(const wm_session& session) {
  const std::lock_guard<std::mutex> lock(session.bindings);
  return session.session->GetStats();
}

wm_status SessionStats(const wm_session* session, wm_counter* out, std::size_t capacity,
                       std::size_t* count) noexcept {
  Arguments check;
  check.Object(session, "session").Array(out, capacity, "out").Pointer(count, "count");
  return Guard(nullptr, check, [&] {
    std::vector<wm_counter> counters;
    AddCounters(StatsOf(*session), counters);
    GiveAll(counters, out, capacity, count);
  });
}

wm_status SessionLayerStats(const wm_session* session, std::int32_t layer,
                            wm_layer_stats* out) noexcept {
  return Guard(nullptr, Arguments().Object(session, "session").OutStruct(out, "out"),
               [&] { return GiveLayerStats(*session->session, session->bindings, layer, out); });
}

}  // namespace

void FillSession(wm_graph_api_v1& graph) {
  graph.session_create = &SessionCreate;
  graph.session_release = &Release<wm_session>;
  graph.session_bind_layer = &SessionBindLayer;
  graph.session_set_stream = &SessionSetStream;
  graph.session_begin_step = &SessionBeginStep;
  graph.session_view = &SessionView;
  graph.session_hand_over = &SessionHandOver;
  graph.session_submit = &SessionSubmit;
  graph.session_drop = &SessionDrop;
  graph.session_lose = &SessionLose;
  graph.session_cancel = &SessionCancel;
  graph.session_discard = &SessionDiscard;
  graph.session_self_test = &SessionSelfTest;
  graph.session_status = &SessionStatus;
  graph.session_stats = &SessionStats;
  graph.session_layer_stats = &SessionLayerStats;
}

}  // namespace waymark::abi
