#include "blockstore/flight/replay.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/digest.h"
#include "blockstore/flight/format.h"
#include "blockstore/invalid.h"
#include "blockstore/store/checkpoint.h"

namespace waymark::flight {

struct FlightReplay::Step final : public StepRows {
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> reasons) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      const std::size_t row = first + i;
      const std::size_t width = bytes.size() / verdicts.size();
      reasons[i] = verdicts[row];
      std::memcpy(destinations[i], bytes.data() + row * width, width);
    }
  }
  void Done() override {}

  bool awaits_rows = false;
  StepBatch batch;  // of `slots`
  std::vector<std::int64_t> slots;
  // The rows so far.
  std::vector<std::uint8_t> bytes;
  std::vector<Reason> verdicts;
};

absl::StatusOr<std::unique_ptr<FlightReplay>> FlightReplay::Create(const FlightInfo& info,
                                                                   std::uint64_t max_bytes,
                                                                   bool audit, Voids voids) {
  StoreOptions options = info.ReplayOptions();
  options.log = LogCallback::Discard();  // what it loses, the recorded store lost
  options.audit = audit;
  if (absl::Status status = options.shape.Validate(); !status.ok()) return status;
  // In doubles, because a forged head can have any numbers.
  const double pages_per_block =
      static_cast<double>(options.block_tokens) / options.shape.page_tokens;
  const double page =
      static_cast<double>(options.shape.page_bytes()) + 8.0 * options.shape.page_tokens + 88;
  const double wanted = (0.0 + options.num_pages + info.spare_pages) * page +
                        options.num_blocks * pages_per_block * 60.0 + options.max_step_rows * 24.0;
  if (options.num_blocks < 1 || !(wanted <= static_cast<double>(max_bytes))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("flight head: a store of ", options.num_blocks, " blocks, ", options.num_pages,
                     " pages and ", options.max_steps_in_flight, " steps of ",
                     options.max_step_rows, " rows exceeds max_bytes = ", max_bytes));
  }
  absl::StatusOr<std::unique_ptr<RoutingStore>> store = RoutingStore::Create(options);
  if (!store.ok()) {
    return absl::Status(store.status().code(),
                        absl::StrCat("flight head: ", store.status().message()));
  }
  if (voids == Voids::kRecorded) StoreCheckpoint::KeepAuditedPages(**store);
  return std::unique_ptr<FlightReplay>(new FlightReplay(info, *std::move(store), voids));
}

FlightReplay::FlightReplay(const FlightInfo& info, std::unique_ptr<RoutingStore> store, Voids voids)
    : info_(info), voids_(voids), store_(std::move(store)), step_(std::make_unique<Step>()) {}

// The store goes first: it calls the rows of the step until it is destroyed.
FlightReplay::~FlightReplay() {
  views_.clear();
  store_.reset();
}

bool FlightReplay::awaits_rows() const {
  return step_->awaits_rows;
}

absl::Status FlightReplay::Apply(const FlightRecord& record, const OnRead& on_read) {
  const bool in_order = record.kind != FlightRecordKind::kLanded &&
                        record.kind != FlightRecordKind::kRead &&
                        record.kind != FlightRecordKind::kClose;
  if (in_order && step_->awaits_rows) {
    return Invalid("flight: step ", step_->batch.step,
                   " was submitted, and its rows do not follow");
  }
  switch (record.kind) {
    case FlightRecordKind::kCheckpoint:
      from_checkpoint_ = true;
      return StoreCheckpoint::Load(record.bytes, *store_);
    case FlightRecordKind::kSchedule:
    case FlightRecordKind::kEvents:
      return Schedule(record);
    case FlightRecordKind::kStep:
      return Begin(record);
    case FlightRecordKind::kLanded:
      return Landed(record);
    case FlightRecordKind::kPoison:
      return Poison(record);
    case FlightRecordKind::kSnapshot:
      return TakeSnapshot(record);
    case FlightRecordKind::kReleased:
      if (views_.erase(record.read_id) > 0) StoreCheckpoint::ReclaimSnapshots(*store_);
      return absl::OkStatus();
    case FlightRecordKind::kVoided:
      if (voids_ == Voids::kRecorded) VoidPage(record.voided);
      return absl::OkStatus();
    case FlightRecordKind::kRead:
      return Read(record, on_read);
    case FlightRecordKind::kClose:
      return absl::OkStatus();
    case FlightRecordKind::kInfo:
      break;
  }
  return Invalid("flight: a record of unknown kind");
}

absl::Status FlightReplay::Schedule(const FlightRecord& record) {
  const StepCode code = record.kind == FlightRecordKind::kEvents
                            ? store_->Report(record.events)
                            : store_->Schedule(StepId(record.step), record.version);
  if (code.ok()) return absl::OkStatus();
  return Invalid("flight: a schedule or its events contradict the records before it: ",
                 code.ToStatus().message());
}

absl::Status FlightReplay::Begin(const FlightRecord& record) {
  Step& step = *step_;
  step.slots = record.slots;
  step.batch = {.step = record.step,
                .version = record.version,
                .slots = step.slots.data(),
                .num_slots = step.slots.size()};
  step.bytes.clear();
  step.verdicts.clear();
  step.awaits_rows = record.end == StepEnd::kSubmit;
  return step.awaits_rows ? absl::OkStatus() : ApplyStep(record.end, nullptr);
}

absl::Status FlightReplay::Landed(const FlightRecord& record) {
  Step& step = *step_;
  const auto broken = [&record](const char* what) {
    return Invalid("flight: step ", record.step, " lands ", what);
  };
  if (!step.awaits_rows || record.step != step.batch.step) return broken("when it is not its turn");
  if (static_cast<std::size_t>(record.begin) != step.verdicts.size()) {
    return broken("rows out of their order");
  }
  step.bytes.insert(step.bytes.end(), record.bytes.begin(), record.bytes.end());
  step.verdicts.insert(step.verdicts.end(), record.verdicts.begin(), record.verdicts.end());
  if (record.more) return absl::OkStatus();
  const std::size_t rows = step.verdicts.size();
  if (rows > 0 && rows != step.slots.size()) {
    return broken("another number of rows than it has");
  }
  step.awaits_rows = false;
  // Without ids there are none for the store, either.
  return ApplyStep(StepEnd::kSubmit, rows > 0 ? &step : nullptr);
}

absl::Status FlightReplay::ApplyStep(StepEnd end, StepRows* rows) {
  StepBatch& batch = step_->batch;
  batch.drop = end == StepEnd::kDrop;
  const StepCode code = store_->BeginStep(batch);
  if (!code.ok() && !code.dropped()) {
    return Invalid("flight: step ", batch.step,
                   " contradicts the records before it: ", code.ToStatus().message());
  }
  if (end == StepEnd::kCancel) (void)store_->Cancel(StepId(batch.step));
  if (end == StepEnd::kSubmit) {
    (void)store_->Submit(StepId(batch.step), rows);
    (void)store_->Land(StepId(batch.step));
  }
  return absl::OkStatus();
}

absl::Status FlightReplay::Poison(const FlightRecord& record) {
  const std::uint64_t last = store_->last_step().value();
  if (record.step < last || record.step == ~std::uint64_t{0}) {
    return Invalid("flight: records were lost up to step ", record.step, ", but step ", last,
                   " was begun before");
  }
  StoreCheckpoint::Poison(*store_, record.step, record.version);
  return absl::OkStatus();
}

absl::Status FlightReplay::TakeSnapshot(const FlightRecord& record) {
  absl::StatusOr<Snapshot> snapshot = store_->TakeSnapshot(record.blocks, record.first, record.last,
                                                           {record.last_step, record.keys});
  if (!snapshot.ok()) {
    return Invalid("flight: read ", record.read_id, ": ", snapshot.status().message());
  }
  View& view = views_[record.read_id];
  view.snapshot = *std::move(snapshot);
  view.blocks = record.blocks;
  view.read_id = store_->GetStats().snapshots_taken;
  return absl::OkStatus();
}

// A page of a snapshot from before the flight is of no block of it and of no key.
void FlightReplay::VoidPage(VoidedPage page) {
  if (page.by == VoidedPage::By::kSnapshot) {
    const auto view = views_.find(page.read_id);
    if (view == views_.end()) return;
    page.read_id = view->second.read_id;
  }
  StoreCheckpoint::VoidPage(*store_, page);
}

absl::Status FlightReplay::Read(const FlightRecord& record, const OnRead& on_read) {
  const std::size_t count = record.infos.size();
  const auto found = views_.find(record.read_id);
  if (found == views_.end()) {  // taken before the flight begins
    rows_not_replayed_ += count;
    return absl::OkStatus();
  }
  const Snapshot& snapshot = found->second.snapshot;
  const std::int64_t end = record.begin + static_cast<std::int64_t>(count);
  if (record.begin < snapshot.first() || end > snapshot.last() || end < record.begin) {
    return Invalid("flight: read ", record.read_id, " of rows [", record.begin, ", ", end,
                   ") is not within its snapshot's rows [", snapshot.first(), ", ", snapshot.last(),
                   ")");
  }
  const RoutingShape& shape = store_->options().shape;
  const std::size_t width = shape.row_bytes();
  infos_.resize(count);
  bytes_.resize(count * width);
  digests_.assign(count, 0);
  const ReadSpec spec{Layout::kTokensLayersK,
                      shape.id_bytes() == 1 ? IdType::kUint8 : IdType::kUint16, Fill::kZeros};
  absl::Status status = snapshot.Read(record.begin, end, spec, bytes_, infos_);
  if (!status.ok()) return status;
  for (std::size_t i = 0; i < count; ++i) {
    if (!infos_[i].valid()) continue;
    const std::uint8_t* row = bytes_.data() + i * width;
    if (info_.rows == FlightRows::kIds) {
      digests_[i] = RowDigest({row, width});
    } else {
      std::memcpy(&digests_[i], row, sizeof digests_[i]);
    }
  }
  if (on_read) {
    on_read({record.read_id, record.begin, found->second.blocks, record.infos, infos_,
             record.digests, digests_, bytes_});
  }
  return absl::OkStatus();
}

StepWindow FlightReplay::FindWindow(const AuditFinding& finding) const {
  const std::uint64_t landed = step_->batch.step;
  const bool sealed_later = finding.block >= 0 && finding.step < landed;
  const std::uint64_t after =
      sealed_later ? finding.step : std::min(finding.kept_step, finding.step);
  return {after < landed ? after : 0, landed};
}

absl::Status FlightReplay::Save(std::string& out) {
  return StoreCheckpoint::Save(*store_, out);
}

}  // namespace waymark::flight
