#include "plugin/capture/capture_session.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string>
#include <utility>

#include "blockstore/step_path.h"
#include "plugin/capture/capture_session_impl.h"
#include "plugin/capture/host_transport.h"

namespace waymark {
namespace {

constexpr std::int32_t kMostRows = 1 << 20;
constexpr std::int32_t kMostBuffers = 4096;
constexpr std::int32_t kMostExperts = 32768;  // ids of a view are int16

absl::Status CheckRange(const char* field, std::int64_t value, std::int64_t least,
                        std::int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(field) + ": must be in [" + std::to_string(least) +
                                    ", " + std::to_string(most) + "]; it is " +
                                    std::to_string(value));
}

std::string LayerName(std::int32_t layer, std::int32_t layer_id, const std::string& module) {
  return "layer " + std::to_string(layer) + " (" +
         (module.empty() ? "unbound, model layer " + std::to_string(layer_id) : module) + ")";
}

}  // namespace

absl::StatusOr<std::unique_ptr<CaptureSession>> CaptureSession::Create(
    const CaptureOptions& options) {
  if (options.store == nullptr) {
    return absl::InvalidArgumentError("CaptureOptions.store: must not be null");
  }
  const StoreOptions& of_store = options.store->options();
  const std::int32_t most_experts = options.ids_only ? INT32_MAX : kMostExperts;
  for (const absl::Status& status :
       {CheckRange("CaptureOptions.max_rows", options.max_rows, 1, kMostRows),
        CheckRange("CaptureOptions.num_buffers", options.num_buffers, 1, kMostBuffers),
        CheckRange("CaptureOptions.store's num_experts", of_store.shape.num_experts, 1,
                   most_experts)}) {
    if (!status.ok()) return status;
  }

  auto impl = std::make_unique<Impl>();
  // Next to the object, as a step touches both.
  impl->open.resize(static_cast<std::size_t>(options.num_buffers));
  impl->store = options.store;
  impl->shape = of_store.shape;
  impl->max_rows = options.max_rows;
  impl->ids_only = options.ids_only;
  impl->max_step_rows = of_store.max_step_rows;
  impl->max_ids_rows =
      std::max(options.max_rows, static_cast<std::int32_t>(of_store.max_step_rows));
  impl->counters = std::make_shared<LayerCounters>(impl->shape.num_layers, options.log);
  const TransportOptions transport_options{impl->shape,         options.max_rows,
                                           options.num_buffers, impl->counters,
                                           options.log,         of_store.teardown_timeout};
  absl::StatusOr<std::shared_ptr<Transport>> transport =
      options.transport ? options.transport(transport_options)
                        : HostTransport::Create(transport_options);
  if (!transport.ok()) return transport.status();
  impl->transport = *std::move(transport);
  impl->ids_ring = std::make_shared<IdsRing>(
      impl->shape, impl->max_ids_rows, static_cast<std::int32_t>(of_store.max_steps_in_flight),
      impl->counters);
  impl->bindings.resize(static_cast<std::size_t>(impl->shape.num_layers));
  for (std::int32_t layer = 0; layer < impl->shape.num_layers; ++layer) {
    impl->bindings[static_cast<std::size_t>(layer)].layer = layer;
    impl->counters->SetName(layer, LayerName(layer, impl->shape.layer_id(layer), ""));
  }

  std::unique_ptr<CaptureSession> session(new CaptureSession(std::move(impl)));
  if (options.row_gather.ranks != 1) {
    RowGatherOptions gather_options;
    gather_options.shape = of_store.shape;
    gather_options.collective = options.row_gather;
    // The store refuses steps of more rows.
    gather_options.max_rows =
        static_cast<std::int32_t>(of_store.max_step_rows) / std::max(1, options.row_gather.ranks);
    gather_options.num_steps = options.num_buffers + session->impl_->ids_ring->size();
    gather_options.log = options.log;
    gather_options.teardown_timeout = of_store.teardown_timeout;
    absl::StatusOr<std::shared_ptr<RowGather>> gather = RowGather::Create(gather_options);
    if (!gather.ok()) return gather.status();
    // From here on the session ends its thread, whatever fails.
    session->impl_->gather = *std::move(gather);
  }
  for (const LayerBinding& binding : options.layers) {
    if (absl::Status status = session->BindLayer(binding.layer, binding.module, binding.capture);
        !status.ok()) {
      return status;
    }
  }
  return session;
}

CaptureSession::CaptureSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

CaptureSession::~CaptureSession() {
  for (std::size_t i = 0; i < impl_->open.size(); ++i) {
    const std::uint64_t step = impl_->open[i].step;
    if (step == 0) continue;
    // A step that the engine ended behind the session's back is not in flight: nothing to do then.
    (void)Drop(StepId(step));
  }
  if (impl_->gather != nullptr) impl_->gather->Close(impl_->store->forked());
}

absl::Status CaptureSession::BindLayer(std::int32_t layer, std::string module,
                                       LayerCapture capture) {
  if (absl::Status status =
          CheckRange("layer", layer, 0, std::int64_t{impl_->shape.num_layers} - 1);
      !status.ok()) {
    return status;
  }
  if (module.empty()) return absl::InvalidArgumentError("module: must not be empty");
  if (impl_->begun.Get() != 0) {
    return absl::FailedPreconditionError(
        "BindLayer: must come before the first step; steps begun: " +
        std::to_string(impl_->begun.Get()));
  }
  for (const LayerBinding& binding : impl_->bindings) {
    if (binding.layer == layer && !binding.module.empty()) {
      return absl::AlreadyExistsError("layer: " + std::to_string(layer) + " is bound already, to " +
                                      binding.module);
    }
    if (binding.module == module) {
      return absl::AlreadyExistsError("module: " + module + " is bound already, to layer " +
                                      std::to_string(binding.layer));
    }
  }
  impl_->counters->SetName(layer, LayerName(layer, impl_->shape.layer_id(layer), module));
  impl_->bindings[static_cast<std::size_t>(layer)] = {layer, std::move(module), capture};
  return absl::OkStatus();
}

void CaptureSession::SetStream(void* stream) {
  impl_->transport->SetStream(stream);
}

WAYMARK_STEP_PATH StepCode CaptureSession::BeginStep(const StepBatch& batch,
                                                     std::int32_t written_rows) {
  std::size_t num_rows = 0;
  if (const StepCode bad = impl_->SplitRows(batch, NumRows(batch), num_rows); !bad.ok()) return bad;
  if (num_rows > static_cast<std::size_t>(impl_->max_rows) && !batch.device_slots) {
    return {kInvalidArgument, StepRule::kTooManyRows, 0, static_cast<std::int64_t>(num_rows)};
  }
  if (written_rows < 0 || written_rows > impl_->max_rows) {
    return {kInvalidArgument, StepRule::kTooManyRows, 0, written_rows};
  }
  if (impl_->ids_only) return {kFailedPrecondition, StepRule::kTooManyRows, 0, written_rows};
  // The buffer first, so that a step without one is dropped by the record that begins it.
  Transport& transport = *impl_->transport;
  const BufferId buffer = transport.healthy() ? transport.Acquire() : kNoBuffer;
  const StepCode code = impl_->Begin(batch, num_rows, buffer != kNoBuffer);
  if (!code.ok()) {
    if (buffer != kNoBuffer) transport.Release(buffer, 0);
    if (!code.dropped()) return code;
    transport.OnStepWithoutBuffer();
    if (buffer == kNoBuffer) impl_->overflows.Add();
    if (buffer != kNoBuffer || code.rule == StepRule::kLogFull) return code;
    return {kResourceExhausted, StepRule::kRingFull, 0, transport.in_use()};
  }
  const auto rows = batch.device_slots ? 0 : static_cast<std::int32_t>(num_rows);
  impl_->open[static_cast<std::size_t>(buffer)] = {batch.step, rows, std::max(rows, written_rows),
                                                   batch.device_slots, written_rows != 0};
  impl_->last_found = static_cast<std::size_t>(buffer);
  return code;
}

StepCode CaptureSession::BeginIdsStep(const StepBatch& batch) {
  if (batch.device_slots) {
    return {kInvalidArgument, StepRule::kDeviceSlots, 0,
            static_cast<std::int64_t>(batch.num_slots)};
  }
  std::size_t num_rows = 0;
  if (const StepCode bad = impl_->SplitRows(batch, NumRows(batch), num_rows); !bad.ok()) return bad;
  if (num_rows > static_cast<std::size_t>(impl_->max_ids_rows)) {
    return {kInvalidArgument, StepRule::kTooManyRows, 0, static_cast<std::int64_t>(num_rows)};
  }
  return impl_->Begin(batch, num_rows, true);
}

CaptureView CaptureSession::view(StepId step) {
  const BufferId buffer = impl_->Find(step);
  CaptureView view = impl_->transport->View(buffer == kNoBuffer ? kScratchBuffer : buffer);
  if (buffer != kNoBuffer || step.value() > impl_->last_begun) view.step = step.value();
  return view;
}

CaptureView CaptureSession::scratch_view() {
  return impl_->transport->View(kScratchBuffer);
}

CaptureCode CaptureSession::HandOver(const CaptureView& view, std::int32_t layer,
                                     const IdsTensor& ids) {
  if (layer < 0 || layer >= impl_->shape.num_layers) {
    return {kInvalidArgument, CaptureRule::kLayerOutOfRange, layer, impl_->shape.num_layers};
  }
  const LayerBinding& binding = impl_->bindings[static_cast<std::size_t>(layer)];
  if (!binding.module.empty() && binding.capture != LayerCapture::kHandsOver) {
    return {kFailedPrecondition, CaptureRule::kLayerNotHandedOver, layer, 0};
  }
  if (ids.type != IdType::kInt16 && ids.type != IdType::kInt32 && ids.type != IdType::kInt64) {
    return {kInvalidArgument, CaptureRule::kIdType, static_cast<std::int64_t>(ids.type), 0};
  }
  if (CaptureCode code = impl_->CheckIds(ids.data, ids.rows, impl_->max_rows, ids.columns);
      !code.ok()) {
    return code;
  }
  if (ids.first_row < 0 || ids.first_row > impl_->max_rows - ids.rows) {
    return {kInvalidArgument, CaptureRule::kTooManyRows, std::int64_t{ids.first_row} + ids.rows,
            impl_->max_rows};
  }
  if (!impl_->MayWrite(view)) {
    return {kNotFound, CaptureRule::kStepNotInFlight, static_cast<std::int64_t>(view.step), 0};
  }
  if (impl_->gather != nullptr && view.buffer != kScratchBuffer) {
    // A tensor with the rows of all ranks would be taken for the rows of this one.
    const std::int32_t of_rank = impl_->open[static_cast<std::size_t>(view.buffer)].rows;
    if (ids.first_row + ids.rows > of_rank) {
      return {kInvalidArgument, CaptureRule::kTooManyRows, std::int64_t{ids.first_row} + ids.rows,
              of_rank};
    }
  }
  impl_->Wrote(view, ids.first_row + ids.rows);
  impl_->transport->HandOver(view.buffer, layer, ids);
  impl_->handed_over.Add(static_cast<std::uint64_t>(ids.rows));
  return {};
}

CaptureCode CaptureSession::HandOver(StepId step, std::int32_t layer, const IdsTensor& ids) {
  return HandOver(view(step), layer, ids);
}

WAYMARK_STEP_PATH StepCode CaptureSession::Submit(StepId step, std::int32_t written_rows) {
  const BufferId buffer = impl_->Find(step);
  if (buffer == kNoBuffer) {
    return {kNotFound, StepRule::kStepNotInFlight, 0, static_cast<std::int64_t>(step.value())};
  }
  const Impl::Open& entry = impl_->open[static_cast<std::size_t>(buffer)];
  if (entry.device_slots) return {kInvalidArgument, StepRule::kDeviceSlots, 0, 0};
  return impl_->Submit(step, buffer, nullptr, entry.rows, written_rows);
}

StepCode CaptureSession::SubmitDeviceSlots(StepId step, const std::int64_t* slots,
                                           std::int32_t rows, std::int32_t written_rows) {
  const BufferId buffer = impl_->Find(step);
  if (buffer == kNoBuffer) {
    return {kNotFound, StepRule::kStepNotInFlight, 0, static_cast<std::int64_t>(step.value())};
  }
  const Impl::Open& entry = impl_->open[static_cast<std::size_t>(buffer)];
  const bool aligned = reinterpret_cast<std::uintptr_t>(slots) % alignof(std::int64_t) == 0;
  if (!entry.device_slots || (slots == nullptr && rows > 0) || !aligned) {
    return {kInvalidArgument, StepRule::kDeviceSlots, 0, rows};
  }
  if (rows < 0 || rows > impl_->max_rows) {
    return {kInvalidArgument, StepRule::kTooManyRows, 0, rows};
  }
  return impl_->Submit(step, buffer, slots, rows, written_rows);
}

StepCode CaptureSession::Drop(StepId step) {
  impl_->ReleaseBuffer(step);
  impl_->EndGather(step, Reason::kCapacity);
  const StepCode code = impl_->store->Drop(step);
  if (code.ok()) impl_->dropped.Add();
  return code;
}

StepCode CaptureSession::Lose(StepId step) {
  impl_->ReleaseBuffer(step);
  impl_->EndGather(step, Reason::kNotCaptured);
  const StepCode code = impl_->store->Submit(step, nullptr);
  if (code.ok()) impl_->dropped.Add();
  return code;
}

StepCode CaptureSession::Cancel(StepId step) {
  impl_->ReleaseBuffer(step);
  impl_->EndGather(step, Reason::kNotCaptured);
  const StepCode code = impl_->store->Cancel(step);
  if (code.ok()) impl_->cancelled.Add();
  return code;
}

void CaptureSession::Discard(std::int32_t written_rows) {
  impl_->transport->Release(kScratchBuffer, std::clamp(written_rows, 0, impl_->max_rows));
  impl_->discards.Add();
}

CaptureCode CaptureSession::SubmitIds(StepId step, const StepIds& ids, DoneCallback done) {
  CaptureCode code = impl_->CheckIds(ids.data, ids.rows, impl_->max_ids_rows, ids.columns);
  if (code.ok() && ids.layers != impl_->shape.num_layers) {
    code = {kInvalidArgument, CaptureRule::kWrongLayers, ids.layers, impl_->shape.num_layers};
  }
  if (code.ok() && !step.valid()) code = {kNotFound, CaptureRule::kStepNotInFlight, 0, 0};
  if (code.ok() && impl_->gather != nullptr) {
    // A tensor with the rows of all ranks would be taken for the rows of this one.
    const std::int32_t of_rank = impl_->gather->OpenRows(step);
    if (of_rank < 0) {
      code = {kNotFound, CaptureRule::kStepNotInFlight, static_cast<std::int64_t>(step.value()), 0};
    } else if (ids.rows > of_rank) {
      code = {kInvalidArgument, CaptureRule::kTooManyRows, ids.rows, of_rank};
    }
  }
  StepRows* rows = nullptr;
  if (code.ok()) {
    rows = impl_->ids_ring->Take(ids, done);
    if (rows == nullptr) {
      // The engine goes on without the ids.
      const StepCode ended = Drop(step);
      code = ended.ok() ? CaptureCode{kResourceExhausted, CaptureRule::kRingFull,
                                      impl_->ids_ring->size(), 0}
                        : CaptureCode{ended.code, CaptureRule::kStepNotInFlight,
                                      static_cast<std::int64_t>(step.value()), 0};
    }
  }
  if (!code.ok()) {
    done();
    return code;
  }
  impl_->ReleaseBuffer(step, /*unwritten=*/true);
  // From here on the rows call `done`, also when the store refuses them.
  if (const StepCode refused = impl_->store->Submit(step, impl_->OfAllRanks(step, rows));
      !refused.ok()) {
    return {refused.code, CaptureRule::kStepNotInFlight, static_cast<std::int64_t>(step.value()),
            0};
  }
  impl_->submitted.Add();
  return {};
}

CaptureStats CaptureSession::GetStats() const {
  CaptureStats stats;
  stats.steps_begun = impl_->begun.Get();
  stats.steps_submitted = impl_->submitted.Get();
  stats.steps_dropped = impl_->dropped.Get();
  stats.steps_cancelled = impl_->cancelled.Get();
  stats.ring_overflows = impl_->overflows.Get();
  stats.discards = impl_->discards.Get();
  stats.rows_handed_over = impl_->handed_over.Get();
  if (impl_->gather != nullptr) {
    const RowGatherStats gathered = impl_->gather->GetStats();
    stats.gathers = gathered.steps;
    stats.gathers_failed = gathered.failed;
    stats.parts_missing = gathered.parts_missing;
  }
  for (const LayerBinding& binding : impl_->bindings) {
    stats.layers.push_back({binding, impl_->shape.layer_id(binding.layer),
                            impl_->counters->silent_rows(binding.layer),
                            impl_->counters->invalid_rows(binding.layer)});
  }
  return stats;
}

absl::Status CaptureSession::status() const {
  if (absl::Status status = impl_->transport->status(); !status.ok()) return status;
  return impl_->gather != nullptr ? impl_->gather->status() : absl::OkStatus();
}
const RoutingShape& CaptureSession::shape() const {
  return impl_->shape;
}
std::int32_t CaptureSession::max_rows() const {
  return impl_->max_rows;
}
const std::vector<LayerBinding>& CaptureSession::bindings() const {
  return impl_->bindings;
}
RoutingStore& CaptureSession::store() {
  return *impl_->store;
}
Transport& CaptureSession::transport() {
  return *impl_->transport;
}

std::string CaptureStats::ToString() const {
  std::string text =
      "steps " + std::to_string(steps_begun) + ", submitted " + std::to_string(steps_submitted) +
      ", dropped " + std::to_string(steps_dropped) + ", cancelled " +
      std::to_string(steps_cancelled) + ", ring overflows " + std::to_string(ring_overflows) +
      ", discards " + std::to_string(discards) + "\n";
  if (gathers + gathers_failed > 0) {
    text += "gathers " + std::to_string(gathers) + ", failed " + std::to_string(gathers_failed) +
            ", parts of other ranks without rows " + std::to_string(parts_missing) + "\n";
  }
  for (const LayerStats& layer : layers) {
    if (layer.rows_silent == 0 && layer.rows_invalid == 0) continue;
    text += LayerName(layer.binding.layer, layer.layer_id, layer.binding.module) + ": " +
            std::to_string(layer.rows_silent) + " rows silent, " +
            std::to_string(layer.rows_invalid) + " rows invalid\n";
  }
  return text;
}

}  // namespace waymark
