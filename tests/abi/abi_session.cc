#include "tests/abi/abi_session.h"

#include <algorithm>
#include <cstring>

namespace waymark::abi_test {
namespace {

wm_step_batch ToC(const StepBatch& batch) {
  wm_step_batch to = {};
  to.struct_size = sizeof(to);
  to.flags = batch.device_slots ? WM_BATCH_DEVICE_SLOTS : 0;
  to.step = batch.step;
  to.version = batch.version;
  to.events = reinterpret_cast<const wm_event*>(batch.events);
  to.num_events = batch.num_events;
  to.slots = batch.slots;
  to.num_slots = batch.num_slots;
  return to;
}

wm_view ToC(const CaptureView& view) {
  wm_view to = {};
  to.data = view.data;
  to.layer_stride = view.layer_stride;
  to.num_layers = view.num_layers;
  to.max_rows = view.max_rows;
  to.top_k = view.top_k;
  to.buffer = view.buffer;
  to.step = view.step;
  return to;
}

CaptureView ToView(const wm_view& view) {
  CaptureView to;
  to.data = view.data;
  to.layer_stride = view.layer_stride;
  to.num_layers = view.num_layers;
  to.max_rows = view.max_rows;
  to.top_k = view.top_k;
  to.buffer = view.buffer;
  to.step = view.step;
  return to;
}

// A link that gives what is heard on to `to`, which lives longer.
wm_ext_log ToC(const LogCallback& to) {
  wm_ext_log log = {};
  log.head = {sizeof(log), WM_EXT_LOG | WM_EXT_REQUIRED, nullptr};
  log.function = [](void* context, std::int32_t level, const char* text, std::size_t size) {
    const auto& callback = *static_cast<const LogCallback*>(context);
    callback.function(callback.context, static_cast<LogLevel>(level), text, size);
  };
  log.context = const_cast<LogCallback*>(&to);
  return log;
}

// A step's code; `status` is what the call returned.
StepCode ToStep(wm_status status, const wm_code& code) {
  // The two say the same.
  const std::int32_t number = code.code == status ? status : -1;
  return {number, static_cast<StepRule>(code.rule), code.index, code.value};
}

CaptureCode ToCapture(wm_status status, const wm_code& code) {
  CaptureRule rule = CaptureRule::kNone;
  switch (code.rule) {
    case WM_RULE_STEP_NOT_IN_FLIGHT:
      rule = CaptureRule::kStepNotInFlight;
      break;
    case WM_RULE_LAYER_OUT_OF_RANGE:
      rule = CaptureRule::kLayerOutOfRange;
      break;
    case WM_RULE_LAYER_NOT_HANDED_OVER:
      rule = CaptureRule::kLayerNotHandedOver;
      break;
    case WM_RULE_NULL_DATA:
      rule = CaptureRule::kNullData;
      break;
    case WM_RULE_ID_TYPE:
      rule = CaptureRule::kIdType;
      break;
    case WM_RULE_TOO_MANY_ROWS:
      rule = CaptureRule::kTooManyRows;
      break;
    case WM_RULE_TOO_FEW_COLUMNS:
      rule = CaptureRule::kTooFewColumns;
      break;
    case WM_RULE_WRONG_LAYERS:
      rule = CaptureRule::kWrongLayers;
      break;
    case WM_RULE_RING_FULL:
      rule = CaptureRule::kRingFull;
      break;
    case WM_RULE_TRANSPORT:
      rule = CaptureRule::kTransport;
      break;
    case WM_RULE_LAYER_NOT_ROUTED:
      rule = CaptureRule::kLayerNotRouted;
      break;
    default:
      break;
  }
  if (code.rule > WM_RULE_ROUTING) {
    return {
        code.code == status ? status : -1,
        CaptureRule::kRouting,
        code.value,
        code.limit,
        {static_cast<kernels::RoutingArgument>(code.index),
         static_cast<kernels::RoutingRule>(code.rule - WM_RULE_ROUTING), code.value, code.limit}};
  }
  return {code.code == status ? status : -1, rule, code.value, code.limit};
}

}  // namespace

// ---- snapshots

absl::Status AbiSnapshot::Wait(std::chrono::nanoseconds timeout) const {
  Why why;
  return why.Status(Api().snapshot_wait(object_, timeout.count(), why.get()));
}

absl::StatusOr<Rows> AbiSnapshot::ReadRows() const {
  Why why;
  wm_rows* handle = nullptr;
  if (const wm_status code = Api().snapshot_rows(object_, &handle, why.get()); code != WM_OK) {
    return why.Status(code);
  }
  wm_shape shape = {sizeof(shape)};
  wm_rows_view view = {sizeof(view)};
  if (Api().rows_shape(handle, &shape) != WM_OK || Api().rows_view(handle, &view) != WM_OK) {
    return absl::InternalError("a wm_rows can be looked at");
  }
  Rows rows;
  rows.shape = {.num_layers = shape.num_layers,
                .top_k = shape.top_k,
                .num_experts = shape.num_experts,
                .page_tokens = shape.page_tokens,
                .layer_ids = {shape.layer_ids, shape.layer_ids + shape.num_layers}};
  rows.first = view.first;
  rows.infos.resize(static_cast<std::size_t>(view.count));
  for (std::size_t i = 0; i < rows.infos.size(); ++i) {
    const wm_row_info& info = view.infos[i];
    rows.infos[i] = {info.step, info.version, static_cast<Reason>(info.reason),
                     static_cast<Provenance>(info.provenance)};
    for (const std::uint8_t byte : info.reserved) {
      if (byte != 0) return absl::InternalError("reserved bytes are 0");
    }
  }
  rows.ids.assign(view.ids, view.ids + rows.infos.size() * shape.row_bytes);
  Api().rows_release(handle);
  return rows;
}

// ---- the store

absl::StatusOr<std::unique_ptr<AbiStore>> AbiStore::Create(const StoreOptions& of) {
  wm_store_options options = {};
  options.struct_size = sizeof(options);
  options.flags =
      (of.device_slots ? WM_STORE_DEVICE_SLOTS : 0) | (of.audit ? 0 : WM_STORE_NO_AUDIT);
  options.num_layers = of.shape.num_layers;
  options.top_k = of.shape.top_k;
  options.num_experts = of.shape.num_experts;
  options.num_blocks = of.num_blocks;
  options.page_tokens = of.shape.page_tokens;
  options.block_tokens = of.block_tokens;
  options.layer_ids = of.shape.layer_ids.data();
  options.num_layer_ids = of.shape.layer_ids.size();
  options.max_steps_in_flight = of.max_steps_in_flight;
  options.max_step_rows = of.max_step_rows;
  options.landing = of.landing == Landing::kCaller ? WM_LANDING_CALLER : WM_LANDING_THREAD;
  Why why;
  auto log = std::make_unique<const LogCallback>(of.log);
  const wm_ext_log link = ToC(*log);
  if (of.log) options.ext = &link.head;
  wm_store* handle = nullptr;
  if (const wm_status code = Api().store_create(&options, &handle, why.get()); code != WM_OK) {
    return why.Status(code);
  }
  std::unique_ptr<AbiStore> store(new AbiStore(handle));
  store->Keep(std::move(log));
  return store;
}

absl::StatusOr<AbiSnapshot> AbiStore::TakeSnapshot(std::span<const BlockId> blocks,
                                                   std::int64_t first, std::int64_t last) {
  std::vector<std::int32_t> numbers;
  for (const BlockId block : blocks)
    numbers.push_back(block.value());
  wm_snapshot_args args = {};
  args.struct_size = sizeof(args);
  args.blocks = numbers.data();
  args.num_blocks = numbers.size();
  args.first = first;
  args.last = last;
  Why why;
  wm_snapshot* handle = nullptr;
  if (const wm_status code = Api().store_snapshot(object_, &args, &handle, why.get());
      code != WM_OK) {
    return why.Status(code);
  }
  return AbiSnapshot(handle);
}

absl::Status AbiStore::WaitIdle(std::chrono::nanoseconds timeout) {
  Why why;
  return why.Status(Api().store_wait_idle(object_, timeout.count(), why.get()));
}

Stats AbiStore::GetStats() const {
  wm_store_stats of = {sizeof(of)};
  Stats stats;
  if (Api().store_stats(object_, &of) != WM_OK) return stats;
  stats.steps_begun = of.steps_begun;
  stats.steps_landed = of.steps_landed;
  stats.steps_dropped = of.steps_dropped;
  stats.steps_cancelled = of.steps_cancelled;
  stats.rows_landed = of.rows_landed;
  stats.rows_outside = of.rows_outside;
  return stats;
}

// ---- the session

absl::StatusOr<std::unique_ptr<AbiSession>> AbiSession::Create(AbiStore& store,
                                                               const CaptureOptions& of) {
  wm_session_options options = {};
  options.struct_size = sizeof(options);
  options.store = store.handle();
  options.max_rows = of.max_rows;
  options.num_buffers = of.num_buffers;
  options.num_ids_steps = of.num_ids_steps;
  Why why;
  auto log = std::make_unique<const LogCallback>(of.log);
  const wm_ext_log link = ToC(*log);
  if (of.log) options.ext = &link.head;
  store.Keep(std::move(log));
  wm_session* handle = nullptr;
  if (const wm_status code = Api().session_create(&options, &handle, why.get()); code != WM_OK) {
    return why.Status(code);
  }
  wm_shape shape = {sizeof(shape)};
  (void)Api().store_shape(store.handle(), &shape);
  std::unique_ptr<AbiSession> session(
      new AbiSession(handle,
                     {.num_layers = shape.num_layers,
                      .top_k = shape.top_k,
                      .num_experts = shape.num_experts,
                      .page_tokens = shape.page_tokens,
                      .layer_ids = {shape.layer_ids, shape.layer_ids + shape.num_layers}},
                     of.max_rows));
  for (const LayerBinding& layer : of.layers) {
    wm_layer_binding binding = {};
    binding.struct_size = sizeof(binding);
    binding.layer = layer.layer;
    binding.module = layer.module.c_str();
    binding.capture = static_cast<std::int32_t>(layer.capture);
    if (const wm_status code = Api().session_bind_layer(handle, &binding, why.get());
        code != WM_OK) {
      return why.Status(code);
    }
  }
  return session;
}

StepCode AbiSession::BeginStep(const StepBatch& batch, std::int32_t written_rows) {
  const wm_step_batch of = ToC(batch);
  wm_code code = {};
  const wm_status status = Api().session_begin_step(object_, &of, written_rows, &code);
  return ToStep(status, code);
}

CaptureView AbiSession::view(StepId step) {
  wm_view view = {};
  (void)Api().session_view(object_, step.value(), &view);
  return ToView(view);
}

CaptureCode AbiSession::HandOver(const CaptureView& view, std::int32_t layer,
                                 const IdsTensor& ids) {
  const wm_view of = ToC(view);
  wm_ids tensor = {};
  tensor.struct_size = sizeof(tensor);
  tensor.type = static_cast<std::int32_t>(ids.type);
  tensor.data = ids.data;
  tensor.rows = ids.rows;
  tensor.columns = ids.columns;
  tensor.row_stride = ids.row_stride;
  tensor.k_stride = ids.k_stride;
  wm_code code = {};
  const wm_status status = Api().session_hand_over(object_, &of, layer, &tensor, &code);
  return ToCapture(status, code);
}

CaptureCode AbiSession::Route(const CaptureView& view, std::int32_t layer,
                              const kernels::RoutingConfig& config,
                              const kernels::RoutingTensors& tensors) {
  const wm_view of = ToC(view);
  const auto tensor = [](const kernels::Tensor& from) {
    wm_tensor to = {};
    to.data = from.data;
    to.dtype = static_cast<std::int32_t>(from.dtype);
    to.rank = from.rank;
    for (int i = 0; i < 2; ++i) {
      to.shape[i] = from.shape[i];
      to.strides[i] = from.stride[i];
    }
    to.device_type = from.device == kernels::MemoryDevice::Host() ? WM_DEVICE_HOST : WM_DEVICE_CUDA;
    to.device = from.device.ordinal;
    return to;
  };
  wm_routing routing = {};
  routing.struct_size = sizeof(routing);
  routing.flags = config.normalize ? 0 : WM_ROUTING_NOT_NORMALIZED;
  routing.method = static_cast<std::int32_t>(config.method);
  routing.top_k = config.top_k;
  routing.num_groups = config.num_groups;
  routing.topk_groups = config.topk_groups;
  routing.scale = config.scale;
  routing.logits = tensor(tensors.logits);
  routing.bias = tensor(tensors.bias);
  routing.topk_ids = tensor(tensors.topk_ids);
  routing.topk_weights = tensor(tensors.topk_weights);
  routing.replay_in = tensor(tensors.replay_in);
  routing.routed = tensor(tensors.routed);
  routing.replay_out = tensor(tensors.replay_out);
  wm_code code = {};
  const wm_status status = Api().session_route(object_, &of, layer, &routing, &code);
  return ToCapture(status, code);
}

StepCode AbiSession::Submit(StepId step, std::int32_t written_rows) {
  wm_code code = {};
  const wm_status status = Api().session_submit(object_, step.value(), written_rows, &code);
  return ToStep(status, code);
}
StepCode AbiSession::SubmitDeviceSlots(StepId step, const std::int64_t* slots, std::int32_t rows,
                                       std::int32_t written_rows) {
  wm_code code = {};
  const wm_status status =
      Api().session_submit_device_slots(object_, step.value(), slots, rows, written_rows, &code);
  return ToStep(status, code);
}
StepCode AbiSession::Drop(StepId step) {
  wm_code code = {};
  const wm_status status = Api().session_drop(object_, step.value(), &code);
  return ToStep(status, code);
}
StepCode AbiSession::Cancel(StepId step) {
  wm_code code = {};
  const wm_status status = Api().session_cancel(object_, step.value(), &code);
  return ToStep(status, code);
}
void AbiSession::Discard(std::int32_t written_rows) {
  (void)Api().session_discard(object_, written_rows);
}
StepCode AbiSession::BeginIdsStep(const StepBatch& batch) {
  const wm_step_batch of = ToC(batch);
  wm_code code = {};
  const wm_status status = Api().session_begin_ids_step(object_, &of, &code);
  return ToStep(status, code);
}

CaptureCode AbiSession::SubmitIds(StepId step, const StepIds& ids, DoneCallback done) {
  wm_ids tensor = {};
  tensor.struct_size = sizeof(tensor);
  tensor.type = static_cast<std::int32_t>(ids.type);
  tensor.data = ids.data;
  tensor.rows = ids.rows;
  tensor.columns = ids.columns;
  tensor.row_stride = ids.row_stride;
  tensor.k_stride = ids.k_stride;
  tensor.layers = ids.layers;
  tensor.layer_stride = ids.layer_stride;
  wm_code code = {};
  const wm_status status = Api().session_submit_ids(object_, step.value(), &tensor,
                                                    {done.function, done.context}, &code);
  return ToCapture(status, code);
}

bool AbiSession::Landed(StepId step) const {
  std::int32_t landed = 0;
  return Api().session_landed(object_, step.value(), &landed) == WM_OK && landed == 1;
}

CaptureStats AbiSession::GetStats() const {
  wm_session_stats of = {sizeof(of)};
  CaptureStats stats;
  if (Api().session_stats(object_, &of) != WM_OK) return stats;
  stats.steps_begun = of.steps_begun;
  stats.steps_submitted = of.steps_submitted;
  stats.steps_dropped = of.steps_dropped;
  stats.steps_cancelled = of.steps_cancelled;
  stats.ring_overflows = of.ring_overflows;
  stats.discards = of.discards;
  stats.rows_handed_over = of.rows_handed_over;
  for (std::int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    wm_layer_stats one = {sizeof(one)};
    if (Api().session_layer_stats(object_, layer, &one) != WM_OK) return {};
    stats.layers.push_back({{layer, one.module, static_cast<LayerCapture>(one.capture)},
                            one.layer_id,
                            one.rows_silent,
                            one.rows_invalid});
  }
  return stats;
}

std::vector<SilentLayer> AbiSession::SilentLayers() const {
  std::vector<SilentLayer> silent;
  for (const LayerStats& layer : GetStats().layers) {
    if (layer.rows_silent == 0) continue;
    std::size_t count = 0;
    (void)Api().session_silent_batch_sizes(object_, layer.binding.layer, nullptr, 0, &count);
    std::vector<std::int32_t> sizes(count);
    (void)Api().session_silent_batch_sizes(object_, layer.binding.layer, sizes.data(), count,
                                           &count);
    silent.push_back({layer.binding.layer, layer.layer_id, layer.binding.module, layer.rows_silent,
                      std::move(sizes)});
  }
  return silent;
}

absl::StatusOr<SelfTestReport> RunSelfTest(
    AbiSession& session, std::int32_t rows,
    const std::function<absl::Status(const CaptureView& view, std::int32_t rows)>& forward) {
  using Forward = std::function<absl::Status(const CaptureView& view, std::int32_t rows)>;
  Forward of = forward;
  const wm_forward through = {
      [](void* context, const wm_view* view, std::int32_t view_rows) -> wm_status {
        const absl::Status status = (*static_cast<Forward*>(context))(ToView(*view), view_rows);
        return static_cast<wm_status>(status.code());
      },
      &of};
  wm_layer_finding findings[64];
  std::size_t count = 0;
  Why text;
  const wm_status code = Api().session_self_test(session.handle(), rows, through, findings,
                                                 std::size(findings), &count, text.get());
  if (code != WM_OK) return text.Status(code);
  SelfTestReport report;
  report.rows = rows;
  report.layers = session.shape().num_layers;
  const CaptureStats stats = session.GetStats();
  for (std::size_t i = 0; i < std::min(count, std::size(findings)); ++i) {
    const wm_layer_finding& finding = findings[i];
    report.findings.push_back({finding.layer, finding.layer_id,
                               stats.layers[static_cast<std::size_t>(finding.layer)].binding.module,
                               static_cast<LayerFault>(finding.fault), finding.rows,
                               finding.first_row});
  }
  // Made here of what came through; what came as text must be the same.
  if (report.ToString() != text.text()) return absl::InternalError("text: " + text.text());
  return report;
}

}  // namespace waymark::abi_test
