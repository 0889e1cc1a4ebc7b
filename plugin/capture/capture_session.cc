#include "plugin/capture/capture_session.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "blockstore/step_path.h"
#include "plugin/capture/host_transport.h"
#include "plugin/capture/ids_ring.h"
#include "plugin/capture/row_gather.h"

namespace waymark {
namespace {

// The codes of absl::Status that a StepCode has, as their numbers.
constexpr std::int32_t kInvalidArgument =
    static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument);
constexpr std::int32_t kFailedPrecondition =
    static_cast<std::int32_t>(absl::StatusCode::kFailedPrecondition);
constexpr std::int32_t kResourceExhausted =
    static_cast<std::int32_t>(absl::StatusCode::kResourceExhausted);
constexpr std::int32_t kNotFound = static_cast<std::int32_t>(absl::StatusCode::kNotFound);

StepCode Broken(StepRule rule, std::int64_t index, std::int64_t value) {
  return {kInvalidArgument, rule, static_cast<std::uint64_t>(index), value};
}
StepCode NotInFlight(StepId step) {
  return {kNotFound, StepRule::kStepNotInFlight, 0, static_cast<std::int64_t>(step.value())};
}

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

}  // namespace

absl::StatusOr<std::unique_ptr<CaptureSession>> CaptureSession::Create(
    const CaptureOptions& options) {
  if (options.store == nullptr) {
    return absl::InvalidArgumentError("CaptureOptions.store: must not be null");
  }
  const StoreOptions& of_store = options.store->options();
  const LogCallback log = options.log.function != nullptr ? options.log : of_store.log;
  const std::int32_t most_experts = options.ids_only ? INT32_MAX : kMostExperts;
  for (const absl::Status& status :
       {CheckRange("CaptureOptions.max_rows", options.max_rows, 1, kMostRows),
        CheckRange("CaptureOptions.num_buffers", options.num_buffers, 1, kMostBuffers),
        CheckRange("extra_columns", options.extra_columns, 0, kMostRows),
        CheckRange("CaptureOptions.store's num_experts", of_store.shape.num_experts, 1,
                   most_experts)}) {
    if (!status.ok()) return status;
  }

  std::unique_ptr<CaptureSession> session(new CaptureSession());
  // Next to the object, as a step touches both.
  session->open_.resize(static_cast<std::size_t>(options.num_buffers));
  session->store_ = options.store;
  session->shape_ = of_store.shape;
  session->max_rows_ = options.max_rows;
  session->ids_only_ = options.ids_only;
  session->columns_ = session->shape_.top_k + options.extra_columns;
  session->max_step_rows_ = of_store.max_step_rows;
  session->max_ids_rows_ =
      std::max(options.max_rows, static_cast<std::int32_t>(of_store.max_step_rows));
  session->counters_ = std::make_shared<LayerCounters>(session->shape_, log);
  const TransportOptions transport_options{
      session->shape_,          options.max_rows, options.num_buffers, session->counters_, log,
      of_store.teardown_timeout};
  absl::StatusOr<std::shared_ptr<Transport>> transport =
      options.transport ? options.transport(transport_options)
                        : HostTransport::Create(transport_options);
  if (!transport.ok()) return transport.status();
  session->transport_ = *std::move(transport);
  session->ids_ring_ = std::make_shared<IdsRing>(
      session->shape_, session->max_ids_rows_,
      static_cast<std::int32_t>(of_store.max_steps_in_flight), session->counters_);
  if (options.row_gather.ranks != 1) {
    RowGatherOptions gather_options;
    gather_options.shape = of_store.shape;
    gather_options.collective = options.row_gather;
    // The store refuses steps of more rows.
    gather_options.max_rows =
        static_cast<std::int32_t>(of_store.max_step_rows) / std::max(1, options.row_gather.ranks);
    gather_options.num_steps = options.num_buffers + session->ids_ring_->size();
    gather_options.log = log;
    gather_options.teardown_timeout = of_store.teardown_timeout;
    absl::StatusOr<std::shared_ptr<RowGather>> gather = RowGather::Create(gather_options);
    if (!gather.ok()) return gather.status();
    // From here on the session ends its thread, whatever fails.
    session->gather_ = *std::move(gather);
  }
  if (log && !options.ids_only) {
    log(LogLevel::kInfo,
        absl::StrCat("a session captures by views: ", std::string(session->transport_->name()),
                     ", ", options.num_buffers, " buffers of ", options.max_rows, " rows"));
  }
  return session;
}

CaptureSession::~CaptureSession() {
  for (std::size_t i = 0; i < open_.size(); ++i) {
    const std::uint64_t step = open_[i].step;
    if (step == 0) continue;
    // A step that the engine ended behind the session's back is not in flight: nothing to do then.
    (void)Drop(StepId(step));
  }
  if (gather_ != nullptr) gather_->Close(store_->forked());
}

absl::Status CaptureSession::BindLayer(std::int32_t layer, std::string module) {
  if (absl::Status status = CheckRange("layer", layer, 0, std::int64_t{shape_.num_layers} - 1);
      !status.ok()) {
    return status;
  }
  if (module.empty()) return absl::InvalidArgumentError("module: must not be empty");
  if (begun_.Get() != 0) {
    return absl::FailedPreconditionError(
        "BindLayer: must come before the first step; steps begun: " + std::to_string(begun_.Get()));
  }
  const std::string& bound = modules()[static_cast<std::size_t>(layer)];
  if (!bound.empty()) {
    return absl::AlreadyExistsError("layer: " + std::to_string(layer) + " is bound already, to " +
                                    bound);
  }
  if (const auto other = std::find(modules().begin(), modules().end(), module);
      other != modules().end()) {
    return absl::AlreadyExistsError("module: " + module + " is bound already, to layer " +
                                    std::to_string(other - modules().begin()));
  }
  counters_->SetModule(layer, std::move(module));
  return absl::OkStatus();
}

void CaptureSession::SetStream(void* stream) {
  transport_->SetStream(stream);
}

// ---- what its calls share

WAYMARK_STEP_PATH BufferId CaptureSession::Find(StepId step) {
  if (step.value() == 0) return kNoBuffer;
  if (open_[last_found_].step == step.value()) return static_cast<BufferId>(last_found_);
  for (std::size_t i = 0; i < open_.size(); ++i) {
    if (open_[i].step == step.value()) {
      last_found_ = i;
      return static_cast<BufferId>(i);
    }
  }
  return kNoBuffer;
}

void CaptureSession::ReleaseBuffer(StepId step, bool unwritten) {
  const BufferId buffer = Find(step);
  if (buffer == kNoBuffer) return;
  Open& entry = OpenOf(buffer);
  const bool all = !entry.counted && !unwritten;
  transport_->Release(buffer, all ? max_rows_ : entry.written_rows);
  entry = {};
}

WAYMARK_STEP_PATH StepCode CaptureSession::SplitRows(std::size_t num_rows,
                                                     std::size_t& rows) const {
  rows = num_rows;
  if (gather_ == nullptr) return {};
  const auto ranks = static_cast<std::size_t>(gather_->ranks());
  rows = num_rows / ranks;
  if (num_rows % ranks != 0) {
    return {kInvalidArgument, StepRule::kRankRows, ranks, static_cast<std::int64_t>(num_rows)};
  }
  if (num_rows <= max_step_rows_) return {};
  return Broken(StepRule::kTooManyRows, 0, static_cast<std::int64_t>(num_rows));
}

WAYMARK_STEP_PATH StepCode CaptureSession::Begin(const StepBatch& batch, std::size_t rows,
                                                 bool room) {
  RowGather::Gathered* memory = nullptr;
  const bool gathers = gather_ != nullptr && gather_->Ready();
  if (gathers && room) memory = gather_->Take();
  if (gather_ != nullptr && room && memory == nullptr) overflows_.Add();
  StepCode code;
  if (room && (gather_ == nullptr || memory != nullptr)) {
    code = store_->BeginStep(batch);
  } else {
    StepBatch without_room = batch;
    without_room.drop = true;
    code = store_->BeginStep(without_room);
  }
  if (!code.ok() && memory != nullptr) {
    gather_->GiveBack(memory);
    memory = nullptr;
  }
  if (!code.ok() && !code.dropped()) return code;
  if (gathers) {
    gather_->Begin(StepId(batch.step), batch.version, static_cast<std::int32_t>(rows), memory);
  }
  last_begun_ = batch.step;
  begun_.Add();
  if (!code.ok() && code.rule != StepRule::kLogFull) dropped_.Add();
  return code;
}

WAYMARK_STEP_PATH StepRows* CaptureSession::OfAllRanks(StepId step, StepRows* local) {
  if (gather_ == nullptr || gather_->OpenRows(step) < 0) return local;
  return gather_->Submit(step, local);
}

StepCode CaptureSession::CheckIds(const StepIds& ids, std::int32_t most_rows) const {
  if (ids.rows < 0 || ids.first_row < 0 || ids.first_row > most_rows - ids.rows) {
    return Broken(StepRule::kIdsRows, most_rows, std::int64_t{ids.first_row} + ids.rows);
  }
  if (ids.rows > 0 && ids.data == nullptr) return Broken(StepRule::kIdsData, 0, ids.rows);
  if (ids.columns != columns_) return Broken(StepRule::kIdsColumns, columns_, ids.columns);
  if (shape_.num_experts <= ExpertsHeld(ids.type)) return {};
  return Broken(StepRule::kIdsExperts, shape_.num_experts, static_cast<std::int64_t>(ids.type));
}

// ---- the step path

WAYMARK_STEP_PATH StepCode CaptureSession::BeginStep(const StepBatch& batch,
                                                     std::int32_t written_rows) {
  std::size_t num_rows = 0;
  if (const StepCode bad = SplitRows(NumRows(batch), num_rows); !bad.ok()) return bad;
  if (num_rows > static_cast<std::size_t>(max_rows_)) {
    return Broken(StepRule::kTooManyRows, 0, static_cast<std::int64_t>(num_rows));
  }
  if (written_rows < 0 || written_rows > max_rows_) {
    return Broken(StepRule::kTooManyRows, 0, written_rows);
  }
  if (ids_only_) return {kFailedPrecondition, StepRule::kTooManyRows, 0, written_rows};
  // The buffer first, so that a step without one is dropped by the record that begins it.
  Transport& transport = *transport_;
  const BufferId buffer = transport.healthy() ? transport.Acquire() : kNoBuffer;
  const StepCode code = Begin(batch, num_rows, buffer != kNoBuffer);
  if (!code.ok()) {
    if (buffer != kNoBuffer) transport.Release(buffer, 0);
    if (!code.dropped()) return code;
    transport.OnStepWithoutBuffer();
    if (buffer == kNoBuffer) overflows_.Add();
    if (buffer != kNoBuffer || code.rule == StepRule::kLogFull) return code;
    return {kResourceExhausted, StepRule::kRingFull, 0, transport.in_use()};
  }
  const auto rows = static_cast<std::int32_t>(num_rows);
  OpenOf(buffer) = {batch.step, rows, std::max(rows, written_rows), written_rows != 0};
  last_found_ = static_cast<std::size_t>(buffer);
  return code;
}

StepCode CaptureSession::BeginIdsStep(const StepBatch& batch) {
  std::size_t num_rows = 0;
  if (const StepCode bad = SplitRows(NumRows(batch), num_rows); !bad.ok()) return bad;
  if (num_rows > static_cast<std::size_t>(max_ids_rows_)) {
    return Broken(StepRule::kTooManyRows, 0, static_cast<std::int64_t>(num_rows));
  }
  return Begin(batch, num_rows, true);
}

CaptureView CaptureSession::view(StepId step) {
  const BufferId buffer = Find(step);
  CaptureView view = transport_->View(buffer == kNoBuffer ? kScratchBuffer : buffer);
  if (buffer != kNoBuffer || step.value() > last_begun_) view.step = step.value();
  return view;
}

CaptureView CaptureSession::scratch_view() {
  return transport_->View(kScratchBuffer);
}

StepCode CaptureSession::HandOver(const CaptureView& view, std::int32_t layer, const StepIds& ids) {
  if (layer < 0 || layer >= shape_.num_layers) {
    return Broken(StepRule::kIdsLayer, shape_.num_layers, layer);
  }
  if (ids.type != IdType::kInt16 && ids.type != IdType::kInt32 && ids.type != IdType::kInt64) {
    return Broken(StepRule::kIdsType, 0, static_cast<std::int64_t>(ids.type));
  }
  if (const StepCode code = CheckIds(ids, max_rows_); !code.ok()) return code;
  const bool scratch = view.buffer == kScratchBuffer;
  const auto buffer = static_cast<std::size_t>(view.buffer);
  // The scratch view may be written, unless it stands for a step that was not begun. A view that
  // outlived its step must not write into the step that has the buffer now.
  const bool may_write =
      scratch ? view.step <= last_begun_
              : view.step != 0 && buffer < open_.size() && open_[buffer].step == view.step;
  if (!may_write) return NotInFlight(StepId(view.step));
  if (!scratch) {
    Open& entry = open_[buffer];
    // A tensor with the rows of all ranks would be taken for the rows of this one.
    if (gather_ != nullptr && ids.first_row + ids.rows > entry.rows) {
      return Broken(StepRule::kIdsRows, entry.rows, std::int64_t{ids.first_row} + ids.rows);
    }
    entry.written_rows = std::max(entry.written_rows, ids.first_row + ids.rows);
  }
  transport_->HandOver(view.buffer, layer, ids);
  handed_over_.Add(static_cast<std::uint64_t>(ids.rows));
  return {};
}

WAYMARK_STEP_PATH StepCode CaptureSession::Submit(StepId step, std::int32_t written_rows) {
  const BufferId buffer = Find(step);
  if (buffer == kNoBuffer) return NotInFlight(step);
  if (written_rows < 0 || written_rows > max_rows_) {
    return Broken(StepRule::kTooManyRows, 0, written_rows);
  }
  const Open entry = std::exchange(OpenOf(buffer), {});
  // The buffer is no longer the step's: the store ends the use of what Seal returns also when it
  // refuses it.
  const std::int32_t written = std::max(entry.written_rows, written_rows);
  const StepCode code =
      store_->Submit(step, OfAllRanks(step, transport_->Seal(buffer, entry.rows, written)));
  if (code.ok()) submitted_.Add();
  return code;
}

StepCode CaptureSession::Drop(StepId step, bool no_room) {
  ReleaseBuffer(step);
  if (gather_ != nullptr) gather_->End(step, Reason::kCapacity);
  const StepCode code = store_->Drop(step, no_room);
  if (code.ok()) dropped_.Add();
  return code;
}

StepCode CaptureSession::Lose(StepId step) {
  ReleaseBuffer(step);
  if (gather_ != nullptr) gather_->End(step, Reason::kNotCaptured);
  const StepCode code = store_->Submit(step, nullptr);
  if (code.ok()) lost_.Add();
  return code;
}

StepCode CaptureSession::Cancel(StepId step) {
  ReleaseBuffer(step);
  if (gather_ != nullptr) gather_->End(step, Reason::kNotCaptured);
  const StepCode code = store_->Cancel(step);
  if (code.ok()) cancelled_.Add();
  return code;
}

void CaptureSession::Discard(std::int32_t written_rows) {
  transport_->Release(kScratchBuffer, std::clamp(written_rows, 0, max_rows_));
  discards_.Add();
}

StepCode CaptureSession::SubmitIds(StepId step, const StepIds& ids, DoneCallback done) {
  StepCode code = CheckIds(ids, max_ids_rows_);
  if (code.ok() && ids.first_row != 0) code = Broken(StepRule::kIdsRows, 0, ids.first_row);
  if (code.ok() && ids.layers != shape_.num_layers) {
    code = Broken(StepRule::kIdsLayers, shape_.num_layers, ids.layers);
  }
  if (code.ok() && !step.valid()) code = NotInFlight(step);
  if (code.ok() && gather_ != nullptr) {
    // A tensor with the rows of all ranks would be taken for the rows of this one.
    const std::int32_t of_rank = gather_->OpenRows(step);
    if (of_rank < 0) {
      code = NotInFlight(step);
    } else if (ids.rows > of_rank) {
      code = Broken(StepRule::kIdsRows, of_rank, ids.rows);
    }
  }
  StepRows* rows = nullptr;
  if (code.ok()) {
    rows = ids_ring_->Take(step, ids, done);
    if (rows == nullptr) {
      // The engine goes on without the ids.
      code = Drop(step, /*no_room=*/true);
      if (code.ok()) code = {kResourceExhausted, StepRule::kRingFull, 0, ids_ring_->size()};
    }
  }
  if (!code.ok()) {
    done();
    return code;
  }
  ReleaseBuffer(step, /*unwritten=*/true);
  // From here on the rows call `done`, also when the store refuses them.
  code = store_->Submit(step, OfAllRanks(step, rows));
  if (code.ok()) submitted_.Add();
  return code;
}

CaptureStats CaptureSession::GetStats() const {
  CaptureStats stats;
  stats.steps_begun = begun_.Get();
  stats.steps_submitted = submitted_.Get();
  stats.steps_dropped = dropped_.Get();
  stats.steps_cancelled = cancelled_.Get();
  stats.steps_without_buffer = overflows_.Get();
  stats.steps_lost = lost_.Get();
  stats.discards = discards_.Get();
  stats.rows_handed_over = handed_over_.Get();
  if (gather_ != nullptr) {
    const RowGatherStats gathered = gather_->GetStats();
    stats.gathers = gathered.steps;
    stats.gathers_failed = gathered.failed;
    stats.parts_missing = gathered.parts_missing;
  }
  for (std::int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    stats.layers.push_back({modules()[static_cast<std::size_t>(layer)], shape_.layer_id(layer),
                            counters_->silent_rows(layer), counters_->invalid_rows(layer)});
  }
  return stats;
}

absl::Status CaptureSession::status() const {
  if (absl::Status status = transport_->status(); !status.ok()) return status;
  return gather_ != nullptr ? gather_->status() : absl::OkStatus();
}

}  // namespace waymark
