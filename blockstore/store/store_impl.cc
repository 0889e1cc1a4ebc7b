#include "blockstore/store/store_impl.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace waymark {
namespace {

constexpr std::int32_t kNotFound = static_cast<std::int32_t>(absl::StatusCode::kNotFound);
constexpr std::int32_t kExhausted = static_cast<std::int32_t>(absl::StatusCode::kResourceExhausted);

}  // namespace

RoutingStore::Impl::Impl(const StoreOptions& store_options, std::shared_ptr<StoreCore> shared)
    : options_(store_options),
      core_(std::move(shared)),
      check_(options_),
      pages_(options_, *core_, stats_),
      steps_(options_, pages_, stats_),
      events_(options_, pages_, steps_.device(), stats_),
      lander_(options_, *core_, mutex_, pages_, steps_, stats_) {}

RoutingStore::Impl::~Impl() {
  lander_.Stop();
  for (;;) {
    // A submitted device step can land once the open steps before it have been dropped.
    while (lander_.LandNext()) {
    }
    lander_.RunCopies();
    std::uint64_t step = 0;
    {
      const MutexLock lock(mutex_);
      if (steps_.in_flight().empty()) break;
      step = steps_.in_flight().front()->step;
    }
    (void)End(step, StepEnd::kDrop);
  }
}

// ---- step path

StepCode RoutingStore::Impl::BeginStep(const StepBatch& batch) {
  const StepCode code = check_.Batch(batch, last_);
  if (!code.ok()) return code;
  bool queued_copies = false;
  StepCode answer;
  {
    const MutexLock lock(mutex_);
    last_ = batch.step;
    ++stats_.steps_begun;
    stats_.events += batch.num_events;
    if (!lander_.has_thread()) pages_.ReclaimSnapshots(2);
    const std::uint64_t copies_before = pages_.copies_queued();

    StepRecord* record = nullptr;
    const auto in_flight = static_cast<std::int64_t>(steps_.in_flight().size());
    if (!steps_.MakeRoomFor(batch.step, batch.version)) {
      answer = {kExhausted, StepRule::kStampsWrap, 0, in_flight};
    } else if (record = steps_.Begin(batch); record == nullptr) {
      answer = {kExhausted, StepRule::kRingFull, 0, in_flight};
      ++stats_.steps_refused_ring;
    }
    if (record == nullptr) ++stats_.steps_dropped;
    if (core_->flight != nullptr) core_->flight->OnBegin(batch, record == nullptr);

    // Rule 1: events, claims, and the seals that name this step.
    events_.Apply(batch.event_span(), batch.step);
    steps_.ClaimRows(record, batch);
    events_.ApplyOwnSeals(batch.event_span(), batch.step);
    pages_.ContendClaimed(pages_.base().Relative(batch.step));
    queued_copies = pages_.copies_queued() != copies_before;
  }
  if (queued_copies) lander_.Wake();
  return answer;
}

StepCode RoutingStore::Impl::Submit(std::uint64_t step, StepRows* rows) {
  bool in_flight = false;
  {
    const MutexLock lock(mutex_);
    StepRecord* const record = steps_.Find(step);
    in_flight = record != nullptr && record->state == StepRecord::State::kBegun;
    if (in_flight) {
      steps_.Submit(*record, rows);
      if (core_->flight != nullptr) core_->flight->OnEnd(step, StepEnd::kSubmit);
    }
  }
  if (in_flight) {
    lander_.Wake();
    return {};
  }
  if (rows != nullptr) rows->Done();
  return {kNotFound, StepRule::kStepNotInFlight, 0, static_cast<std::int64_t>(step)};
}

StepCode RoutingStore::Impl::End(std::uint64_t step, StepEnd how) {
  bool waiting = false;
  {
    const MutexLock lock(mutex_);
    StepRecord* const record = steps_.Find(step);
    if (record == nullptr || record->state != StepRecord::State::kBegun) {
      return {kNotFound, StepRule::kStepNotInFlight, 0, static_cast<std::int64_t>(step)};
    }
    steps_.Revoke(*record, how);
    ++(how == StepEnd::kDrop ? stats_.steps_dropped : stats_.steps_cancelled);
    if (core_->flight != nullptr) core_->flight->OnEnd(step, how);
    steps_.Retire(*record);
    waiting = steps_.device().any();  // the next device step may land now
  }
  if (waiting) lander_.Wake();
  core_->NotifyProgress();
  return {};
}

// ---- reading

absl::StatusOr<SnapshotState*> RoutingStore::Impl::TakeSnapshot(std::span<const BlockId> blocks,
                                                                std::int64_t first,
                                                                std::int64_t last) {
  const std::int64_t block_tokens = options_.block_tokens;
  const std::int64_t limit = static_cast<std::int64_t>(blocks.size()) * block_tokens;
  if (first < 0 || first > last || last > limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TakeSnapshot: rows [", first, ", ", last, ") must satisfy 0 <= first <= last <= ", limit,
        " (", blocks.size(), " blocks of ", block_tokens, " tokens)"));
  }
  const std::int64_t page_tokens = core_->page_tokens;
  const std::int64_t begin = first / page_tokens;
  const std::int64_t end = first == last ? begin : (last + page_tokens - 1) / page_tokens;
  const std::int64_t pages_per_block = block_tokens / page_tokens;
  for (std::int64_t i = begin / pages_per_block; i * pages_per_block < end; ++i) {
    const std::int32_t block = blocks[static_cast<std::size_t>(i)].value();
    if (block >= options_.num_blocks) {
      return absl::InvalidArgumentError(absl::StrCat("TakeSnapshot: blocks[", i,
                                                     "] must be below num_blocks (",
                                                     options_.num_blocks, "), got ", block));
    }
  }
  const MutexLock lock(mutex_);
  SnapshotState* const state = pages_.PinSnapshot(blocks, first, last);
  state->upto = last_;
  state->copies = pages_.copies_queued();
  if (core_->flight != nullptr) core_->flight->OnSnapshot(state->read_id, blocks, first, last);
  return state;
}

std::int64_t RoutingStore::Impl::CoveredPrefix(std::span<const BlockId> blocks, std::int64_t rows) {
  const MutexLock lock(mutex_);
  std::int64_t covered = 0;
  for (const BlockId block : blocks) {
    if (block.value() >= options_.num_blocks) return covered;
    const EntryIndex first = pages_.FirstEntry(block.value());
    if (first == kNoEntry) return covered;
    for (EntryIndex e = first; e < first + pages_.pages_per_block(); ++e) {
      const Entry& entry = pages_.table().hot(e);
      if (!entry.exists || entry.page == kNoPage) return covered;
      for (std::uint32_t row = 0; row < pages_.page_tokens(); ++row) {
        if (covered == rows || (!pages_.stamp(entry.page, row).Load().live() &&
                                !steps_.device().Claimed(entry.page, row, kMaxRelStep))) {
          return covered;
        }
        ++covered;
      }
    }
  }
  return covered;
}

absl::Status RoutingStore::Impl::WaitIdle(std::chrono::nanoseconds timeout) {
  std::uint64_t upto = 0;
  std::uint64_t copies = 0;
  if (!lander_.has_thread()) {
    while (lander_.LandNext()) {
    }
    lander_.RunCopies();
  }
  {
    const MutexLock lock(mutex_);
    upto = last_;
    copies = pages_.copies_queued();
  }
  if (lander_.has_thread() ? core_->WaitReached(upto, copies, timeout)
                           : core_->Reached(upto, copies)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "WaitIdle: steps up to ", upto, " had not all ended after ", timeout.count(), " ns"));
}

Stats RoutingStore::Impl::GetStats() {
  Stats stats;
  std::uint64_t entries = 0;
  {
    const MutexLock lock(mutex_);
    stats = stats_;
    entries = pages_.table().size();
    stats.pages = pages_.pool().size();
    stats.pages_in_use = pages_.pool().in_use();
    stats.pages_in_use_peak = pages_.pool().in_use_peak();
    stats.snapshots_taken = pages_.snapshots_taken();
    stats.snapshots_live = pages_.snapshots_live();
  }
  const std::uint64_t per_page = sizeof(PageHot) + sizeof(PageCold) + 7;
  stats.bytes =
      stats.pages * (core_->shape.page_bytes() + 4 * std::uint64_t{core_->page_tokens} + per_page) +
      entries * (sizeof(Entry) + sizeof(SealCold));
  stats.bytes_touched_peak =
      stats.bytes - (stats.pages - stats.pages_in_use_peak) * core_->shape.page_bytes();
  stats.experts = lander_.experts().Get();
  return stats;
}

}  // namespace waymark
