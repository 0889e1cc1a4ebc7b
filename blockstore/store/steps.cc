// Steps: validation, claims, ends, and the base that stamps are relative to.

#include <algorithm>
#include <chrono>

#include "blockstore/store/store_impl.h"

namespace waymark {
namespace {

constexpr std::int32_t kInvalid = static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument);
constexpr std::int32_t kNotFound = static_cast<std::int32_t>(absl::StatusCode::kNotFound);
constexpr std::int32_t kExhausted = static_cast<std::int32_t>(absl::StatusCode::kResourceExhausted);
constexpr std::int32_t kFailedPrecondition =
    static_cast<std::int32_t>(absl::StatusCode::kFailedPrecondition);

constexpr std::size_t kGroup = 16;      // rows per pass of ClaimRows
constexpr std::size_t kPageAhead = 12;  // rows ahead of the one being unpinned

// The slot of a row, whether or not routing was asked for. REQUIRES: not padding.
std::uint64_t KnownSlot(std::int64_t slot) {
  return static_cast<std::uint64_t>(slot >= 0 ? slot : NotAsked(slot));
}

}  // namespace

// ---- validation of the whole batch, before anything is changed

StepCode RoutingStore::Impl::ValidateEvent(const Event& event, std::uint64_t index,
                                           std::uint64_t step) {
  const auto broken = [&](StepRule rule, std::int64_t value) {
    return StepCode{kInvalid, rule, index, value};
  };
  switch (event.type) {
    case EventType::kReset:
      return {};
    case EventType::kBind:
    case EventType::kRetain:
    case EventType::kRelease:
    case EventType::kSeal:
    case EventType::kCopy:
    case EventType::kMove:
    case EventType::kTruncate:
      break;
    default:
      return broken(StepRule::kUnknownEvent, static_cast<std::int64_t>(event.type));
  }
  if (event.block >= options_.num_blocks) return broken(StepRule::kBlockOutOfRange, event.block);
  if (event.key_size > BlockKey::kMaxBytes) return broken(StepRule::kKeyTooLong, event.key_size);
  if (event.type == EventType::kCopy || event.type == EventType::kMove) {
    if (event.src >= options_.num_blocks) {
      return broken(StepRule::kSrcOutOfRange, event.src);
    }
    if (event.type == EventType::kCopy && event.src == event.block && event.block >= 0) {
      return broken(StepRule::kSelfCopy, event.block);
    }
  }
  const auto block_tokens = static_cast<std::int32_t>(pages_per_block_ * page_tokens_);
  if (event.type == EventType::kCopy && event.rows != Event::kAllRows &&
      (event.rows < 0 || event.rows > block_tokens)) {
    return broken(StepRule::kRowsOutOfRange, event.rows);
  }
  if (event.type == EventType::kTruncate && (event.rows < 0 || event.rows > block_tokens)) {
    return broken(StepRule::kRowsOutOfRange, event.rows);
  }
  if (event.type == EventType::kSeal && event.step > step) {
    return broken(StepRule::kSealStep, static_cast<std::int64_t>(event.step));
  }
  return {};
}

// A simultaneous move must not name a block twice as `src`, or twice as `block`.
StepCode RoutingStore::Impl::ValidateMoves(std::span<const Event> events) {
  for (const bool from_side : {true, false}) {
    move_blocks_.clear();
    for (const Event& event : events) {
      const std::int32_t block = from_side ? event.src : event.block;
      if (block >= 0) move_blocks_.push_back(block);
    }
    std::sort(move_blocks_.begin(), move_blocks_.end());
    const auto twice = std::adjacent_find(move_blocks_.begin(), move_blocks_.end());
    if (twice != move_blocks_.end()) return {kInvalid, StepRule::kDuplicateMove, 0, *twice};
  }
  return {};
}

StepCode RoutingStore::Impl::ValidateEvents(std::span<const Event> events, std::uint64_t step) {
  for (std::size_t i = 0; i < events.size(); ++i) {
    const StepCode code = ValidateEvent(events[i], i, step);
    if (!code.ok()) return code;
    if (events[i].type == EventType::kMove && events[i].more != 0) {
      std::size_t end = i;
      while (end < events.size() && events[end].type == EventType::kMove && events[end].more != 0) {
        ++end;
      }
      if (end < events.size() && events[end].type == EventType::kMove) ++end;
      for (std::size_t j = i; j < end; ++j) {
        const StepCode pair = ValidateEvent(events[j], j, step);
        if (!pair.ok()) return pair;
      }
      StepCode group = ValidateMoves(events.subspan(i, end - i));
      group.index = i;
      if (!group.ok()) return group;
      i = end - 1;
    }
  }
  return {};
}

StepCode RoutingStore::Impl::ValidateStep(std::uint64_t step) {
  if (step <= last_ || step == StoreCore::kNoStep) {
    return {kInvalid, StepRule::kStepNotIncreasing, 0, static_cast<std::int64_t>(step)};
  }
  if (step < schedule_) {
    return {kFailedPrecondition, StepRule::kScheduleAhead, 0, static_cast<std::int64_t>(schedule_)};
  }
  return {};
}

StepCode RoutingStore::Impl::Validate(const StepBatch& batch) {
  if (const StepCode code = ValidateStep(batch.step); !code.ok()) return code;
  if (batch.num_slots > options_.max_step_rows) {
    return {kInvalid, StepRule::kTooManyRows, 0, static_cast<std::int64_t>(batch.num_slots)};
  }
  if (batch.device_slots && !options_.device_slots) {
    return {kInvalid, StepRule::kDeviceSlots, 0, static_cast<std::int64_t>(batch.num_slots)};
  }
  if (const StepCode code = ValidateEvents(batch.event_span(), batch.step); !code.ok()) return code;
  std::uint64_t outside = 0;
  for (const std::int64_t slot : batch.slot_span()) {
    outside |= static_cast<std::uint64_t>(slot >= num_slots_) |
               static_cast<std::uint64_t>(slot < -1 - num_slots_);
  }
  if (outside != 0) {
    const auto bad = std::find_if(
        batch.slots, batch.slots + batch.num_slots,
        [&](std::int64_t slot) { return slot >= num_slots_ || slot < -1 - num_slots_; });
    return {kInvalid, StepRule::kSlotOutOfRange, static_cast<std::uint64_t>(bad - batch.slots),
            *bad};
  }
  return {};
}

// ---- begin

StepCode RoutingStore::Impl::Schedule(std::uint64_t step, std::uint64_t version) {
  if (const StepCode code = ValidateStep(step); !code.ok()) return code;
  const MutexLock lock(mutex_);
  OpenSchedule(step, version);
  return {};
}

StepCode RoutingStore::Impl::Report(std::span<const Event> events) {
  const StepCode code = ValidateEvents(events, std::max(schedule_, last_));
  if (!code.ok()) return code;
  bool queued_copies = false;
  {
    const MutexLock lock(mutex_);
    const std::uint64_t copies_before = copies_queued_;
    ApplyEvents(events);
    queued_copies = copies_queued_ != copies_before;
  }
  if (queued_copies) Wake();
  return {};
}

StepCode RoutingStore::Impl::BeginStep(const StepBatch& batch, bool drop) {
  const StepCode code = Validate(batch);
  if (!code.ok()) return code;
  bool queued_copies = false;
  StepCode answer;
  {
    const MutexLock lock(mutex_);
    if (!thread_.joinable()) ReclaimSnapshots(2);
    const std::uint64_t copies_before = copies_queued_;
    if (batch.num_events > 0) {
      OpenSchedule(batch.step, batch.version);
      ApplyEvents(batch.event_span());
    }
    LosePagesOfOtherVersions(batch.version);
    last_ = batch.step;
    schedule_ = 0;
    version_ = batch.version;
    ++stats_.steps_begun;

    StepRecord* record = nullptr;
    if (!MakeRoomFor(batch.step, batch.version)) {
      answer = {kExhausted, StepRule::kStampsWrap, 0, static_cast<std::int64_t>(active_.size())};
    } else if (drop) {
      // The step is not in flight.
    } else if (free_records_.empty()) {
      answer = {kExhausted, StepRule::kRingFull, 0, static_cast<std::int64_t>(active_.size())};
      ++stats_.steps_refused_ring;
    } else {
      record = free_records_.back();
      free_records_.pop_back();
      active_.push_back(record);
      record->state = StepRecord::State::kBegun;
      record->step = batch.step;
      record->version = batch.version;
      // A device step has no claims yet; the record still has those of an earlier step.
      record->num_rows = batch.device_slots ? 0 : static_cast<std::uint32_t>(batch.num_slots);
      record->rows = nullptr;
      record->device = batch.device_slots;
      if (record->device) record->pages.Clear(batch.num_slots + record->copies.capacity());
      device_steps_ += batch.device_slots ? 1 : 0;
      if (active_.size() == 1) core_->oldest_in_flight.store(batch.step, std::memory_order_seq_cst);
    }
    const RelStep step = base_->Relative(batch.step);
    if (record != nullptr) record->relative = step;
    if (core_->flight != nullptr) {
      StepBatch begin = batch;
      begin.num_events = 0;
      core_->flight->OnBegin(begin, record == nullptr);
    }

    contending_.clear();
    if (batch.device_slots) {
      ClaimDeviceRows(record, batch.slot_span(), step, batch.version);
    } else {
      ClaimRows(record, batch.slot_span(), step, batch.version);
    }
    ApplyOwnSeals(batch.step);
    for (const PageIndex page : contending_) {
      const PageHot& hot = pool_.hot(page);
      if (hot.has_seal_key && !hot.indexed) ContendForKey(page, step);
    }
    if (record == nullptr) ++stats_.steps_dropped;
    queued_copies = copies_queued_ != copies_before;
  }
  if (queued_copies) Wake();
  return answer;
}

void RoutingStore::Impl::ClaimRows(StepRecord* record, std::span<const std::int64_t> slots,
                                   RelStep step, std::uint64_t version) {
  // Table entries, page records and stamps are not in the cache. Each group of rows goes through
  // three passes, which prefetch for one another: find the entries, find their pages, claim. A pass
  // works on the group after that of the next pass.
  EntryIndex found[3][kGroup];
  const std::size_t rows = slots.size();
  for (std::size_t at = 0; at < rows + 2 * kGroup; at += kGroup) {
    EntryIndex* const finding = found[at / kGroup % 3];
    const std::size_t found_end = std::min(at + kGroup, rows);
    for (std::size_t i = at; i < found_end; ++i) {
      const std::int64_t slot = slots[i];
      if (slot == kPaddingSlot) {
        finding[i - at] = kNoEntry;
        continue;
      }
      const EntryIndex e = EntryOf(KnownSlot(slot));
      finding[i - at] = e;
      table_.Prefetch(e);
    }
    if (record != nullptr) {
      for (std::size_t i = at; i < found_end; i += 4)
        __builtin_prefetch(&record->claims[i], 1);
    }
    if (at < kGroup) continue;
    const EntryIndex* const fetching = found[(at / kGroup + 2) % 3];
    const std::size_t fetched_end = std::min(at, rows);
    for (std::size_t i = at - kGroup; i < fetched_end; ++i) {
      const EntryIndex e = fetching[i + kGroup - at];
      if (e == kNoEntry) continue;
      const PageIndex page = table_.hot(e).page;
      if (page == kNoPage) continue;
      __builtin_prefetch(&pool_.hot(page), 1);
      const auto row =
          static_cast<std::uint32_t>(KnownSlot(slots[i]) - std::uint64_t{e} * page_tokens_);
      __builtin_prefetch(&core_->stamp(page, row), 1);
    }
    if (at < 2 * kGroup) continue;
    const EntryIndex* const claiming = found[(at / kGroup + 1) % 3];
    const std::size_t first = at - 2 * kGroup;
    const std::size_t claimed_end = std::min(at - kGroup, rows);
    for (std::size_t i = first; i < claimed_end; ++i) {
      ClaimRow(record, static_cast<std::uint32_t>(i), slots[i], claiming[i - first], step, version);
    }
  }
}

void RoutingStore::Impl::ClaimRow(StepRecord* record, std::uint32_t step_row, std::int64_t slot,
                                  EntryIndex e, RelStep step, std::uint64_t version) {
  if (record != nullptr) record->claims[step_row] = Claim{};
  if (slot == kPaddingSlot) {
    ++stats_.rows_padding;
    return;
  }
  const bool asked = slot >= 0;
  const auto row = static_cast<std::uint32_t>(KnownSlot(slot) - std::uint64_t{e} * page_tokens_);
  if (table_.hot(e).null) {
    ++stats_.rows_padding;
    return;
  }
  Entry& entry = EnsureEntry(e, step);
  if (!asked) ++stats_.rows_not_asked;
  PageIndex page = entry.page;
  if (page != kNoPage) {
    StampCell& cell = core_->stamp(page, row);
    const Stamp stamp = cell.Load();
    const bool again = record != nullptr && stamp.pending_for(step);
    if (again || Protected(pool_.hot(page), stamp, version)) {
      cell.MarkHow(Provenance::kKept);
      ++stats_.rows_ignored;
      if (!again && asked && record != nullptr && options_.audit &&
          record->ignored.size() < record->ignored.capacity()) {
        record->ignored.push_back({step_row, page, e, static_cast<std::uint16_t>(row)});
        PinPage(page);
      }
      return;
    }
    if (SeenByOthers(pool_.hot(page), row)) page = CopyOnWrite(e);
  } else if (asked) {
    page = NewPage(e);
  } else {
    return;  // there is no row, and none will be stored
  }
  if (page == kNoPage) {
    ++stats_.no_page;
    return;
  }
  StampCell& cell = core_->stamp(page, row);
  if (!asked) {
    cell.Store(Stamp::Absent(Reason::kNotCaptured));
  } else if (record == nullptr) {
    cell.Store(Stamp::Absent(Reason::kCapacity));
  } else {
    ++stats_.rows_claimed;
    Claim& claim = record->claims[step_row];
    claim.page = page;
    claim.row = static_cast<std::uint16_t>(row);
    claim.pinned = step_row == 0 || record->claims[step_row - 1].page != page;
    if (claim.pinned) PinPage(page);
    cell.Store(Stamp::Pending(step));
  }
  UpdateIndexAfterClaim(page, version);
}

// The page is in the index for the rows that it had when it was sealed. A row of another version,
// or a newer seal, removes it; it may then contend for its new key.
void RoutingStore::Impl::UpdateIndexAfterClaim(PageIndex page, std::uint64_t version) {
  const PageHot& hot = pool_.hot(page);
  if (hot.indexed) {
    const PageCold& cold = pool_.cold(page);
    if (!hot.has_seal_key || cold.index_key != cold.seal_key || cold.seal_version != version) {
      Unindex(page);
    }
  }
  if (hot.has_seal_key && !hot.indexed && (contending_.empty() || contending_.back() != page)) {
    contending_.push_back(page);
  }
}

// A seal protects from the step after its own, because own seals come after the claims.
bool RoutingStore::Impl::Protected(const PageHot& hot, Stamp stamp, std::uint64_t version) const {
  if (hot.sealed == 0 || !stamp.live()) return false;
  return base_->VersionOf(stamp.step()) == version;
}

bool RoutingStore::Impl::SeenByOthers(const PageHot& hot, std::uint32_t row) {
  return row < hot.high_water || hot.bindings > 1;
}

// ---- end

StepRecord* RoutingStore::Impl::FindRecord(std::uint64_t step) {
  for (StepRecord* record : active_) {
    if (record->step == step) return record;
  }
  return nullptr;
}

StepRecord* RoutingStore::Impl::FindRecordByRelative(RelStep step) {
  for (StepRecord* record : active_) {
    if (record->relative == step) return record;
  }
  return nullptr;
}

StepCode RoutingStore::Impl::Submit(std::uint64_t step, StepRows* rows) {
  bool in_flight = false;
  {
    const MutexLock lock(mutex_);
    StepRecord* record = FindRecord(step);
    in_flight = record != nullptr && record->state == StepRecord::State::kBegun;
    if (in_flight) {
      record->state = StepRecord::State::kSubmitted;
      record->rows = rows;
      record->submitted_at =
          static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
      submitted_.push_back(record);
      if (core_->flight != nullptr) core_->flight->OnEnd(step, StepEnd::kSubmit);
    }
  }
  if (in_flight) {
    Wake();
    return {};
  }
  if (rows != nullptr) rows->Done();
  return {kNotFound, StepRule::kStepNotInFlight, 0, static_cast<std::int64_t>(step)};
}

StepCode RoutingStore::Impl::End(std::uint64_t step, StepEnd how) {
  bool waiting = false;
  {
    const MutexLock lock(mutex_);
    StepRecord* record = FindRecord(step);
    if (record == nullptr || record->state != StepRecord::State::kBegun) {
      return {kNotFound, StepRule::kStepNotInFlight, 0, static_cast<std::int64_t>(step)};
    }
    const bool drop = how == StepEnd::kDrop;
    RevokeClaims(*record, drop ? Reason::kCapacity : Reason::kNeverWritten);
    ++(drop ? stats_.steps_dropped : stats_.steps_cancelled);
    if (core_->flight != nullptr) core_->flight->OnEnd(step, how);
    Unpin(*record);
    Retire(*record);
    waiting = device_steps_ > 0;  // the next device step may land now
  }
  if (waiting) Wake();
  core_->NotifyProgress();
  return {};
}

void RoutingStore::Impl::RevokeClaims(StepRecord& record, Reason reason) {
  const auto revoke = [&](PageIndex page, std::uint32_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (page == kNoPage) return;
    StampCell& cell = core_->stamp(page, row);
    // The landing thread may be publishing this row at the same time.
    Stamp stamp = cell.Load();
    while (stamp.pending_for(record.relative)) {
      if (cell.Exchange(stamp, stamp.Missing(reason))) {
        ++stats_.rows_missing[static_cast<std::size_t>(reason)];
        return;
      }
      stamp = cell.Load();
    }
  };
  if (record.device) {
    // Cancel: a device step has not changed any stamp.
    if (reason == Reason::kCapacity) InvalidateRange(record);
    return;
  }
  for (std::uint32_t i = 0; i < record.num_rows; ++i) {
    revoke(record.claims[i].page, record.claims[i].row);
  }
  for (const SideRow& side : record.copies)
    revoke(side.page, side.row);
}

void RoutingStore::Impl::Unpin(StepRecord& record) {
  for (std::uint32_t i = 0; i < record.num_rows; ++i) {
    if (i + kPageAhead < record.num_rows && record.claims[i + kPageAhead].pinned) {
      __builtin_prefetch(&pool_.hot(record.claims[i + kPageAhead].page), 1);
    }
    if (record.claims[i].pinned) UnpinPage(record.claims[i].page);
  }
  for (const SideRow& side : record.copies)
    UnpinPage(side.page);
  for (const SideRow& side : record.ignored)
    UnpinPage(side.page);
  record.copies.clear();
  record.ignored.clear();
}

void RoutingStore::Impl::Retire(StepRecord& record) {
  active_.erase(std::find(active_.begin(), active_.end(), &record));
  device_steps_ -= record.device ? 1 : 0;
  record.device = false;
  record.state = StepRecord::State::kFree;
  record.rows = nullptr;
  free_records_.push_back(&record);
  // Steps begin in order, so the first one left is the oldest.
  core_->oldest_in_flight.store(active_.empty() ? StoreCore::kNoStep : active_.front()->step,
                                std::memory_order_seq_cst);
}

// ---- lost records

void RoutingStore::Impl::Poison(std::span<const std::uint64_t> open_steps, std::uint64_t last_step,
                                std::uint64_t version) {
  {
    const MutexLock lock(mutex_);
    if (core_->flight != nullptr) core_->flight->OnPoison(open_steps, last_step, version);
    for (std::size_t i = 0; i < active_.size();) {
      StepRecord& record = *active_[i];
      RevokeClaims(record, Reason::kCapacity);
      const bool open =
          record.state == StepRecord::State::kSubmitted ||
          std::find(open_steps.begin(), open_steps.end(), record.step) != open_steps.end();
      if (open) {
        ++i;
        continue;
      }
      ++stats_.steps_dropped;
      Unpin(record);
      Retire(record);
    }
    last_ = last_step;
    version_ = version;
    schedule_ = 0;
    if (base_->Relative(last_) < kMaxRelStep) base_->Append(base_->Relative(last_), version);
    own_seals_.clear();
    found_by_key_.clear();
    ForgetSecondSeals();
    ClearIndex();
    // Any block may have had another life meanwhile, also one that the store does not know.
    for (EntryIndex e = 0; e < table_.size(); ++e) {
      Entry& entry = table_.hot(e);
      if (entry.null) continue;
      const std::int32_t users = EnsureEntry(e, 0).refs;
      Detach(e, Reason::kCapacity);
      entry = Entry{};
      entry.exists = true;
      entry.reason = Reason::kCapacity;
      entry.refs = users;
      entry.life_start = base_->Relative(last_ + 1);
    }
  }
  Wake();  // the next device step may land now
  core_->NotifyProgress();
}

// ---- the base of stamps

bool RoutingStore::Impl::MakeRoomFor(std::uint64_t step, std::uint64_t version) {
  const RelStep relative = base_->Relative(step);
  if (relative < kMaxRelStep && base_->Append(relative, version)) return true;
  if (!active_.empty() || spare_base_ == nullptr) return false;
  Rebase(step);
  return base_->Append(base_->Relative(step), version);
}

void RoutingStore::Impl::ForgetSecondSeals() {
  for (const PageCopy& pair : second_seals_) {
    UnpinPage(pair.from);
    UnpinPage(pair.to);
  }
  second_seals_.clear();
}

void RoutingStore::Impl::Rebase(std::uint64_t step) {
  ++stats_.rebases;
  const std::shared_ptr<StepBase> old = base_;
  std::shared_ptr<StepBase> fresh = std::move(spare_base_);
  spare_base_ = nullptr;
  fresh->base = StepBase::Under(step);
  const auto translate = [&](RelStep relative) {
    return relative == 0 ? 0 : fresh->Relative(old->base + relative);
  };
  // Late events may name steps of the window: keeps their versions in the new base.
  const std::uint32_t runs = old->num_runs.load(std::memory_order_relaxed);
  for (std::uint32_t i = runs > StepBase::kWindow ? runs - StepBase::kWindow : 0; i < runs; ++i) {
    if (i + 1 < runs && translate(old->runs[i + 1].first) <= kBeforeBase) continue;
    fresh->Append(translate(old->runs[i].first), old->runs[i].version);
  }
  ForgetSecondSeals();
  ClearIndex();
  for (EntryIndex e = 0; e < table_.size(); ++e) {
    Entry& entry = table_.hot(e);
    if (!entry.exists) continue;
    if (entry.page != kNoPage) Detach(e, Reason::kCapacity);
    entry.life_start = translate(entry.life_start);
    entry.sealed = translate(entry.sealed);
  }
  base_ = std::move(fresh);
}

}  // namespace waymark
