// The capture session of the C ABI.
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

static_assert(static_cast<int>(LayerCapture::kKernelWritesView) == WM_CAPTURE_KERNEL_WRITES_VIEW &&
              static_cast<int>(LayerCapture::kHandsOver) == WM_CAPTURE_HANDS_OVER &&
              static_cast<int>(LayerCapture::kRoutingKernel) == WM_CAPTURE_ROUTING_KERNEL &&
              static_cast<int>(LayerFault::kSilent) == WM_FAULT_SILENT &&
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
    wm_ext_log log = {};
    Arguments check;
    check.Struct(given, args, "options");
    Collective row_gather;
    if (args.row_gather != nullptr) {
      row_gather = TakeCollective(args.row_gather, "options.row_gather", check);
    }
    check.Flags(args.flags, WM_SESSION_ONE_VIEW, "options.flags");
    check.Chain(args.ext, "options.ext", &log).Object(args.store, "options.store");
    check.InRange(args.transport, WM_TRANSPORT_HOST, WM_TRANSPORT_CUDA, "options.transport");
    check.Zero(static_cast<std::uint32_t>(args.reserved), "options.reserved");
    check.Pointer(out, "out");
    if (!check.ok()) return check.status();
    absl::StatusOr<TransportFactory> transport = TransportOf(args);
    if (!transport.ok()) return transport.status();
    CaptureOptions options;
    options.store = args.store->store;
    options.max_rows = args.max_rows;
    if (args.num_buffers != 0) options.num_buffers = args.num_buffers;
    options.num_ids_steps = args.num_ids_steps;
    options.transport = *std::move(transport);
    options.row_gather = row_gather;
    options.log = LogOf(*args.store, log);
    auto object = std::make_unique<wm_session>(args.store);
    absl::StatusOr<std::unique_ptr<CaptureSession>> session = CaptureSession::Create(options);
    if (!session.ok()) return session.status();
    object->session = *std::move(session);
    *out = object.release();
    return absl::OkStatus();
  });
}

wm_status SessionBindLayer(wm_session* session, const wm_layer_binding* given,
                           wm_message* why) noexcept {
  return Guard(why, [&]() -> absl::Status {
    wm_layer_binding args = {};
    Arguments check;
    check.Object(session, "session").Struct(given, args, "binding");
    check.Pointer(args.module, "binding.module");
    check.InRange(args.capture, WM_CAPTURE_KERNEL_WRITES_VIEW, WM_CAPTURE_ROUTING_KERNEL,
                  "binding.capture");
    check.Zero(static_cast<std::uint32_t>(args.reserved), "binding.reserved");
    if (!check.ok()) return check.status();
    const std::lock_guard<std::mutex> lock(session->bindings);
    return session->session->BindLayer(args.layer, args.module,
                                       static_cast<LayerCapture>(args.capture));
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
  return GuardStep(nullptr, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    session->session->SetStream(stream);
    return {};
  });
}

wm_status SessionBeginStep(wm_session* session, const wm_step_batch* given,
                           std::int32_t written_rows, wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    PairRows rows;
    StepBatch batch;
    if (const wm_code bad = TakeBatch(given, 1, rows, batch); bad.code != WM_OK) return bad;
    return ToCode(session->session->BeginStep(batch, written_rows));
  });
}

wm_status SessionView(wm_session* session, std::uint64_t step, wm_view* view) noexcept {
  return GuardStep(nullptr, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    if (view == nullptr) return BadArgument(2);
    *view = ToView(session->session->view(StepId(step)));
    return {};
  });
}

// False, with a code, when `given` cannot be read. Its type, rows and columns are the session's to
// judge.
bool TakeIds(const wm_ids* given, std::uint64_t index, wm_ids& args, wm_code& bad) {
  if (!CopyIn(given, args)) {
    bad = BadArgument(index, args.struct_size);
  } else if (args.reserved != 0 || args.reserved_2 != 0) {
    bad = BadArgument(index, args.reserved != 0 ? args.reserved : args.reserved_2);
  } else if (args.type < WM_ID_UINT8 || args.type > WM_ID_INT64) {
    bad = {};
    bad.code = WM_INVALID_ARGUMENT;
    bad.rule = WM_RULE_ID_TYPE;
    bad.value = args.type;
  } else {
    return true;
  }
  return false;
}

wm_status SessionHandOver(wm_session* session, const wm_view* view, std::int32_t layer,
                          const wm_ids* given, wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    if (view == nullptr || view->reserved != 0) return BadArgument(1);
    wm_ids ids = {};
    wm_code bad = {};
    if (!TakeIds(given, 3, ids, bad)) return bad;
    CaptureView to;
    to.buffer = view->buffer;
    to.step = view->step;
    return ToCode(
        session->session->HandOver(to, layer,
                                   {ids.data, static_cast<IdType>(ids.type), ids.rows, ids.columns,
                                    static_cast<std::ptrdiff_t>(ids.row_stride),
                                    static_cast<std::ptrdiff_t>(ids.k_stride), ids.first_row}));
  });
}

wm_status SessionSubmit(wm_session* session, std::uint64_t step, std::int32_t written_rows,
                        wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    return ToCode(session->session->Submit(StepId(step), written_rows));
  });
}

wm_status SessionSubmitDeviceSlots(wm_session* session, std::uint64_t step,
                                   const std::int64_t* slots, std::int32_t rows,
                                   std::int32_t written_rows, wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    if (written_rows < 0) return BadArgument(4, written_rows);
    return ToCode(session->session->SubmitDeviceSlots(StepId(step), slots, rows, written_rows));
  });
}

wm_status SessionDrop(wm_session* session, std::uint64_t step, wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    return ToCode(session->session->Drop(StepId(step)));
  });
}

wm_status SessionCancel(wm_session* session, std::uint64_t step, wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    return ToCode(session->session->Cancel(StepId(step)));
  });
}

wm_status SessionDiscard(wm_session* session, std::int32_t written_rows) noexcept {
  return GuardStep(nullptr, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    if (written_rows < 0) return BadArgument(1, written_rows);
    session->session->Discard(written_rows);
    return {};
  });
}

wm_status SessionBeginIdsStep(wm_session* session, const wm_step_batch* given,
                              wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    PairRows rows;
    StepBatch batch;
    if (const wm_code bad = TakeBatch(given, 1, rows, batch); bad.code != WM_OK) return bad;
    return ToCode(session->session->BeginIdsStep(batch));
  });
}

wm_status SessionSubmitIds(wm_session* session, std::uint64_t step, const wm_ids* given,
                           wm_done done, wm_code* code) noexcept {
  return GuardStep(code, [&]() -> wm_code {
    const DoneCallback callback{done.function, done.context};
    wm_ids ids = {};
    wm_code bad = BadArgument(0);
    if (!IsA(session) || !TakeIds(given, 2, ids, bad)) {
      callback();
      return bad;
    }
    if (ids.first_row != 0) {
      callback();
      return BadArgument(2, ids.first_row);
    }
    return ToCode(session->session->SubmitIds(
        StepId(step),
        {ids.data, static_cast<IdType>(ids.type), ids.rows, ids.layers, ids.columns,
         static_cast<std::ptrdiff_t>(ids.row_stride), static_cast<std::ptrdiff_t>(ids.layer_stride),
         static_cast<std::ptrdiff_t>(ids.k_stride)},
        callback));
  });
}

wm_status SessionLanded(const wm_session* session, std::uint64_t step,
                        std::int32_t* landed) noexcept {
  return GuardStep(nullptr, [&]() -> wm_code {
    if (!IsA(session)) return BadArgument(0);
    if (landed == nullptr) return BadArgument(2);
    *landed = session->session->Landed(StepId(step)) ? 1 : 0;
    return {};
  });
}

// ---- beside it

wm_status SessionSelfTest(wm_session* session, std::int32_t rows, wm_forward forward,
                          wm_layer_finding* findings, std::size_t capacity, std::size_t* count,
                          wm_message* text) noexcept {
  return Guard(text, [&]() -> absl::Status {
    Arguments check;
    check.Object(session, "session").Array(findings, capacity, "findings");
    check.That(forward.function != nullptr, "forward.function", "must not be null");
    check.Pointer(count, "count");
    if (!check.ok()) return check.status();
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
  return Guard(why, [&]() -> absl::Status {
    Arguments check;
    check.Object(session, "session");
    return check.ok() ? session->session->status() : check.status();
  });
}

CaptureStats StatsOf(const wm_session& session) {
  const std::lock_guard<std::mutex> lock(session.bindings);
  return session.session->GetStats();
}

wm_status SessionStats(const wm_session* session, wm_session_stats* out) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(session, "session").OutStruct(out, "out");
    if (!check.ok()) return check.status();
    const CaptureStats stats = StatsOf(*session);
    wm_session_stats to = {};
    to.steps_begun = stats.steps_begun;
    to.steps_submitted = stats.steps_submitted;
    to.steps_dropped = stats.steps_dropped;
    to.steps_cancelled = stats.steps_cancelled;
    to.ring_overflows = stats.ring_overflows;
    to.discards = stats.discards;
    to.rows_handed_over = stats.rows_handed_over;
    to.gathers = stats.gathers;
    to.gathers_failed = stats.gathers_failed;
    to.parts_missing = stats.parts_missing;
    CopyOut(to, out);
    return absl::OkStatus();
  });
}

wm_status SessionLayerStats(const wm_session* session, std::int32_t layer,
                            wm_layer_stats* out) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(session, "session").OutStruct(out, "out");
    if (check.ok()) {
      check.InRange(layer, 0, session->session->shape().num_layers - 1, "layer");
    }
    if (!check.ok()) return check.status();
    const LayerStats of = StatsOf(*session).layers[static_cast<std::size_t>(layer)];
    wm_layer_stats to = {};
    to.layer_id = of.layer_id;
    // A name that is there stays as it is: a layer is bound once.
    to.module = "";
    if (!of.binding.module.empty()) {
      to.module = session->session->bindings()[static_cast<std::size_t>(layer)].module.c_str();
    }
    to.capture = static_cast<std::int32_t>(of.binding.capture);
    to.rows_silent = of.rows_silent;
    to.rows_invalid = of.rows_invalid;
    CopyOut(to, out);
    return absl::OkStatus();
  });
}

wm_status SessionStatsText(const wm_session* session, wm_message* text) noexcept {
  return Guard(text, [&]() -> absl::Status {
    Arguments check;
    check.Object(session, "session");
    if (check.ok()) WriteText(StatsOf(*session).ToString(), text);
    return check.status();
  });
}

wm_status SessionSilentBatchSizes(const wm_session* session, std::int32_t layer,
                                  std::int32_t* batch_sizes, std::size_t capacity,
                                  std::size_t* count) noexcept {
  return Guard(nullptr, [&]() -> absl::Status {
    Arguments check;
    check.Object(session, "session").Array(batch_sizes, capacity, "batch_sizes");
    check.Pointer(count, "count");
    if (check.ok()) {
      check.InRange(layer, 0, session->session->shape().num_layers - 1, "layer");
    }
    if (!check.ok()) return check.status();
    std::vector<std::int32_t> sizes;
    {
      const std::lock_guard<std::mutex> lock(session->bindings);
      for (SilentLayer& silent : session->session->SilentLayers()) {
        if (silent.layer == layer) sizes = std::move(silent.batch_sizes);
      }
    }
    std::copy_n(sizes.begin(), std::min(capacity, sizes.size()), batch_sizes);
    *count = sizes.size();
    return absl::OkStatus();
  });
}

}  // namespace

void FillSession(wm_api_v1& api) {
  api.session_create = &SessionCreate;
  api.session_retain = &Retain<wm_session>;
  api.session_release = &Release<wm_session>;
  api.session_bind_layer = &SessionBindLayer;
  api.session_set_stream = &SessionSetStream;
  api.session_begin_step = &SessionBeginStep;
  api.session_view = &SessionView;
  api.session_hand_over = &SessionHandOver;
  api.session_submit = &SessionSubmit;
  api.session_submit_device_slots = &SessionSubmitDeviceSlots;
  api.session_drop = &SessionDrop;
  api.session_cancel = &SessionCancel;
  api.session_discard = &SessionDiscard;
  api.session_begin_ids_step = &SessionBeginIdsStep;
  api.session_submit_ids = &SessionSubmitIds;
  api.session_landed = &SessionLanded;
  api.session_self_test = &SessionSelfTest;
  api.session_status = &SessionStatus;
  api.session_stats = &SessionStats;
  api.session_layer_stats = &SessionLayerStats;
  api.session_stats_text = &SessionStatsText;
  api.session_silent_batch_sizes = &SessionSilentBatchSizes;
}

}  // namespace waymark::abi
