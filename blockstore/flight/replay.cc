#include "blockstore/flight/replay.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/digest.h"
#include "blockstore/flight/format.h"
#include "blockstore/store/checkpoint.h"

namespace waymark::flight {

// A step of the replay and the rows that it lands.
struct FlightReplay::Step final : public StepRows {
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> reasons) override {
    for (std::size_t i = 0; i < destinations.size(); ++i) {
      if (destinations[i] == nullptr) continue;
      const std::size_t row = first + i;
      reasons[i] = verdicts[row];
      std::memcpy(destinations[i], rows.data() + row * width, width);
    }
  }
  std::optional<std::span<const std::int64_t>> Slots() override {
    if (slots_lost) return std::nullopt;
    return slots;
  }
  void Done() override {}

  bool device = false;  // begun with device_slots: its slots are known when it lands
  std::uint64_t number = 0;
  std::size_t width = 0;  // bytes of a row
  std::size_t num_rows = 0;
  bool submitted = false;
  bool dropped = false;  // the replaying store dropped it when it began
  std::size_t landed = 0;
  std::vector<std::uint8_t> rows;
  std::vector<Reason> verdicts;
  std::vector<std::int64_t> slots;
  bool slots_lost = false;
};

absl::StatusOr<std::unique_ptr<FlightReplay>> FlightReplay::Create(const FlightInfo& info,
                                                                   std::uint64_t max_bytes,
                                                                   bool audit, Voids voids) {
  StoreOptions options = info.ReplayOptions();
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
                        absl::StrCat("flight head: ", std::string(store.status().message())));
  }
  if (voids == Voids::kRecorded) StoreCheckpoint::KeepAuditedPages(**store);
  return std::unique_ptr<FlightReplay>(new FlightReplay(info, *std::move(store), voids));
}

FlightReplay::FlightReplay(const FlightInfo& info, std::unique_ptr<RoutingStore> store, Voids voids)
    : info_(info), voids_(voids), store_(std::move(store)) {}

// The store goes first: it calls the rows of steps until it is destroyed.
FlightReplay::~FlightReplay() {
  views_.clear();
  store_.reset();
}

absl::Status FlightReplay::Apply(const FlightRecord& record, const OnRead& on_read) {
  switch (record.kind) {
    case FlightRecordKind::kCheckpoint:
      if (last_begun_ != 0 || from_checkpoint_) {
        return absl::InvalidArgumentError("flight: a checkpoint after the first record");
      }
      from_checkpoint_ = allow_unknown_ends_ = true;
      if (absl::Status status = StoreCheckpoint::Load(record.bytes, *store_); !status.ok()) {
        return status;
      }
      last_begun_ = store_->last_step().value();
      return absl::OkStatus();
    case FlightRecordKind::kSchedule:
    case FlightRecordKind::kEvents:
      return Schedule(record);
    case FlightRecordKind::kBegin:
      return Begin(record);
    case FlightRecordKind::kPoison:
      return Poison(record, on_read);
    case FlightRecordKind::kEnd:
      return End(record, on_read);
    case FlightRecordKind::kLanded:
      return Landed(record, on_read);
    case FlightRecordKind::kSnapshot:
      return TakeSnapshot(record);
    case FlightRecordKind::kReleased: {
      const auto view = views_.find(record.read_id);
      if (view == views_.end()) return absl::OkStatus();
      const bool awaited =
          std::any_of(waiting_.begin(), waiting_.end(),
                      [&](const FlightRecord& read) { return read.read_id == record.read_id; });
      if (awaited) {
        view->second.released = true;
      } else {
        views_.erase(view);
        StoreCheckpoint::ReclaimSnapshots(*store_);
      }
      return absl::OkStatus();
    }
    case FlightRecordKind::kCopiedOut: {
      const auto view = views_.find(record.read_id);
      if (view != views_.end()) {
        StoreCheckpoint::CopyOut(*store_, view->second.read_id, record.page);
      }
      return absl::OkStatus();
    }
    case FlightRecordKind::kVoided:
      if (voids_ == Voids::kRecorded) VoidPage(record.voided);
      return absl::OkStatus();
    case FlightRecordKind::kRead: {
      absl::StatusOr<bool> done = Read(record, on_read);
      if (!done.ok()) return done.status();
      if (!*done) waiting_.push_back(record);
      return absl::OkStatus();
    }
    case FlightRecordKind::kClose:
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError("flight: a record of unknown kind");
}

absl::Status FlightReplay::Schedule(const FlightRecord& record) {
  const StepCode code = record.kind == FlightRecordKind::kEvents
                            ? store_->Report(record.events)
                            : store_->Schedule(StepId(record.step), record.version);
  if (code.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("flight: a schedule or its events contradict the records before it: ",
                   std::string(code.ToStatus().message())));
}

absl::Status FlightReplay::Begin(const FlightRecord& record) {
  StepBatch batch = record.batch.view();
  batch.drop = record.dropped;
  const StepCode code = store_->BeginStep(batch);
  if (!code.ok() && !code.dropped()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "flight: step ", record.batch.step,
        " contradicts the records before it: ", std::string(code.ToStatus().message())));
  }
  last_begun_ = record.batch.step;
  if (record.dropped) return absl::OkStatus();
  if (code.dropped()) ++steps_diverged_;
  std::unique_ptr<Step> step;
  if (spare_steps_.empty()) {
    step = std::make_unique<Step>();
  } else {
    step = std::move(spare_steps_.back());
    spare_steps_.pop_back();
  }
  step->number = record.batch.step;
  step->width = store_->options().shape.row_bytes();
  step->device = record.batch.device_slots;
  step->slots.clear();
  step->slots_lost = false;
  step->num_rows = step->device ? store_->options().max_step_rows : record.batch.slots.size();
  step->submitted = false;
  step->dropped = code.dropped();
  step->landed = 0;
  step->rows.assign(step->num_rows * step->width, 0);
  step->verdicts.assign(step->num_rows, Reason::kNotCaptured);
  steps_.emplace(record.batch.step, std::move(step));
  return absl::OkStatus();
}

absl::Status FlightReplay::Poison(const FlightRecord& record, const OnRead& on_read) {
  if (record.step < last_begun_ || record.step == ~std::uint64_t{0}) {
    return absl::InvalidArgumentError(absl::StrCat("flight: records were lost up to step ",
                                                   record.step, ", but step ", last_begun_,
                                                   " was begun before"));
  }
  StoreCheckpoint::Poison(*store_, record.step, record.version);
  last_begun_ = record.step;
  return RetryReads(on_read);
}

absl::Status FlightReplay::End(const FlightRecord& record, const OnRead& on_read) {
  const auto found = steps_.find(record.step);
  if (found == steps_.end()) {
    if (allow_unknown_ends_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("flight: step ", record.step, " ends, but is not in flight"));
  }
  Step& step = *found->second;
  if (step.submitted) {
    return absl::InvalidArgumentError(absl::StrCat("flight: step ", record.step, " ends twice"));
  }
  if (step.dropped) {
    if (record.end != StepEnd::kSubmit) Retire(record.step);
    step.submitted = record.end == StepEnd::kSubmit;
    return absl::OkStatus();
  }
  if (record.end == StepEnd::kSubmit) {
    step.submitted = true;
    (void)store_->Submit(StepId(record.step), &step);
    return absl::OkStatus();  // its kLanded record follows
  } else if (record.end == StepEnd::kDrop) {
    (void)store_->Drop(StepId(record.step));
  } else {
    (void)store_->Cancel(StepId(record.step));
  }
  Retire(record.step);
  return RetryReads(on_read);
}

absl::Status FlightReplay::Landed(const FlightRecord& record, const OnRead& on_read) {
  const auto found = steps_.find(record.step);
  if (found == steps_.end()) {
    if (allow_unknown_ends_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("flight: step ", record.step, " lands, but is not in flight"));
  }
  Step& step = *found->second;
  const auto first = static_cast<std::size_t>(record.begin);
  const std::size_t count = record.verdicts.size();
  if (!step.submitted || first != step.landed || count > step.num_rows - step.landed) {
    return absl::InvalidArgumentError(
        absl::StrCat("flight: step ", record.step, " lands rows that it does not have"));
  }
  std::copy(record.verdicts.begin(), record.verdicts.end(),
            step.verdicts.begin() + static_cast<std::ptrdiff_t>(first));
  std::copy(record.bytes.begin(), record.bytes.end(),
            step.rows.begin() + static_cast<std::ptrdiff_t>(first * step.width));
  if (step.device) step.slots.insert(step.slots.end(), record.slots.begin(), record.slots.end());
  step.slots_lost = !record.has_slots;
  step.landed += count;
  if (record.more) return absl::OkStatus();
  // Without any row: its StepRows was null.
  if (step.landed > 0 &&
      (step.device ? step.slots.size() != step.landed : step.landed != step.num_rows)) {
    return absl::InvalidArgumentError(absl::StrCat("flight: step ", record.step, " lands ",
                                                   step.landed, " of ", step.num_rows, " rows"));
  }
  if (!step.dropped) (void)store_->Land(StepId(record.step));
  Retire(record.step);
  return RetryReads(on_read);
}

void FlightReplay::Retire(std::uint64_t step) {
  const auto found = steps_.find(step);
  spare_steps_.push_back(std::move(found->second));
  steps_.erase(found);
}

absl::Status FlightReplay::TakeSnapshot(const FlightRecord& record) {
  absl::StatusOr<Snapshot> snapshot =
      store_->TakeSnapshot(record.blocks, record.first, record.last);
  if (!snapshot.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("flight: read ", record.read_id, ": ",
                                                   std::string(snapshot.status().message())));
  }
  View& view = views_[record.read_id];
  view.snapshot = *std::move(snapshot);
  view.blocks = record.blocks;
  view.read_id = store_->GetStats().snapshots_taken;
  view.released = false;
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

absl::StatusOr<bool> FlightReplay::Read(const FlightRecord& record, const OnRead& on_read) {
  const std::size_t count = record.infos.size();
  const auto found = views_.find(record.read_id);
  if (found == views_.end()) {  // taken before the flight begins
    rows_not_replayed_ += count;
    return true;
  }
  const Snapshot& snapshot = found->second.snapshot;
  const std::int64_t end = record.begin + static_cast<std::int64_t>(count);
  if (record.begin < snapshot.first() || end > snapshot.last() || end < record.begin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "flight: read ", record.read_id, " of rows [", record.begin, ", ", end,
        ") is not within its snapshot's rows [", snapshot.first(), ", ", snapshot.last(), ")"));
  }
  if (!snapshot.Ready()) return false;
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
  return true;
}

absl::Status FlightReplay::RetryReads(const OnRead& on_read) {
  for (std::size_t i = 0; i < waiting_.size();) {
    const std::uint64_t read_id = waiting_[i].read_id;
    absl::StatusOr<bool> done = Read(waiting_[i], on_read);
    if (!done.ok()) return done.status();
    if (!*done) {
      ++i;
      continue;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    const auto view = views_.find(read_id);
    const bool awaited =
        std::any_of(waiting_.begin(), waiting_.end(),
                    [&](const FlightRecord& read) { return read.read_id == read_id; });
    if (view != views_.end() && view->second.released && !awaited) views_.erase(view);
  }
  return absl::OkStatus();
}

std::vector<std::uint64_t> FlightReplay::InFlight() const {
  std::vector<std::uint64_t> steps;
  for (const auto& [number, step] : steps_) {
    if (!step->dropped) steps.push_back(number);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::uint64_t FlightReplay::rows_waiting() const {
  std::uint64_t rows = 0;
  for (const FlightRecord& read : waiting_)
    rows += read.infos.size();
  return rows;
}

absl::Status FlightReplay::Save(std::string& out) {
  return StoreCheckpoint::Save(*store_, out);
}

}  // namespace waymark::flight
