#include "blockstore/store/steps.h"

#include <algorithm>

namespace waymark {
namespace {

constexpr std::size_t kGroup = 16;      // rows per pass of ClaimHostRows
constexpr std::size_t kPageAhead = 12;  // rows ahead of the one being unpinned

// The slot of a row, whether or not routing was asked for. REQUIRES: not padding.
std::uint64_t KnownSlot(std::int64_t slot) {
  return static_cast<std::uint64_t>(slot >= 0 ? slot : NotAsked(slot));
}

}  // namespace

Steps::Steps(const StoreOptions& options, Pages& pages, Stats& stats)
    : pages_(pages),
      table_(pages.table()),
      pool_(pages.pool()),
      stats_(stats),
      audit_(options.audit),
      device_(options, pages, stats),
      spare_base_(std::make_shared<StepBase>()) {
  pages.SetRowsInFlight(this);
  const std::size_t rows = options.max_step_rows;
  const std::size_t sides = std::max<std::size_t>(256, rows / 4);
  for (std::uint32_t i = 0; i < options.max_steps_in_flight; ++i) {
    auto record = std::make_unique<StepRecord>();
    record->claims.resize(rows);
    if (options.device_slots) {
      record->range.resize(rows);
      record->step_row.resize(rows);
      record->first_copy.resize(rows);
    }
    record->copies.reserve(sides);
    if (options.device_slots) record->pages.Reserve(rows + record->copies.capacity());
    record->ignored.reserve(sides);
    free_records_.push_back(record.get());
    records_.push_back(std::move(record));
  }
  in_flight_.reserve(records_.size());
  without_claims_.reserve(records_.size());
  submitted_.reserve(records_.size());
}

// ---- begin

bool Steps::MakeRoomFor(std::uint64_t step, std::uint64_t version) {
  const RelStep relative = pages_.base().Relative(step);
  if (relative < kMaxRelStep && pages_.base().Append(relative, version)) return true;
  if (!in_flight_.empty() || spare_base_ == nullptr) return false;
  pages_.Rebase(std::move(spare_base_), step);
  spare_base_ = nullptr;
  return pages_.base().Append(pages_.base().Relative(step), version);
}

StepRecord* Steps::NewRecord(const StepBatch& batch) {
  if (free_records_.empty()) return nullptr;
  StepRecord* const record = free_records_.back();
  free_records_.pop_back();
  record->state = StepRecord::State::kBegun;
  record->step = batch.step;
  record->version = batch.version;
  record->num_rows = 0;
  record->batch_rows = static_cast<std::uint32_t>(batch.num_slots);
  record->indexed = 0;
  record->rows = nullptr;
  return record;
}

StepRecord* Steps::BeginWithoutClaims(const StepBatch& batch) {
  StepRecord* const record = NewRecord(batch);
  if (record == nullptr) return nullptr;
  without_claims_.push_back(record);
  record->without_claims = true;
  return record;
}

StepRecord* Steps::Begin(const StepBatch& batch) {
  StepRecord* const record = NewRecord(batch);
  if (record == nullptr) return nullptr;
  in_flight_.push_back(record);
  record->relative = pages_.base().Relative(batch.step);
  record->device = batch.device_slots;
  if (record->device) device_.Begin(*record, batch.num_slots);
  if (in_flight_.size() == 1) {
    pages_.core().oldest_in_flight.store(batch.step, std::memory_order_seq_cst);
  }
  return record;
}

void Steps::ClaimRows(StepRecord* record, const StepBatch& batch) {
  const RelStep step = pages_.base().Relative(batch.step);
  if (batch.device_slots) {
    device_.ClaimRows(record, batch.slot_span(), step, batch.version);
  } else {
    ClaimHostRows(record, batch.slot_span(), step, batch.version);
  }
}

void Steps::ClaimHostRows(StepRecord* record, std::span<const std::int64_t> slots, RelStep step,
                          std::uint64_t version) {
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
      const EntryIndex e = pages_.EntryOf(KnownSlot(slot));
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
      const std::uint32_t row = pages_.RowOf(KnownSlot(slots[i]), e);
      __builtin_prefetch(&pages_.stamp(page, row), 1);
    }
    if (at < 2 * kGroup) continue;
    const EntryIndex* const claiming = found[(at / kGroup + 1) % 3];
    const std::size_t first = at - 2 * kGroup;
    const std::size_t claimed_end = std::min(at - kGroup, rows);
    for (std::size_t i = first; i < claimed_end; ++i) {
      const auto row = static_cast<std::uint32_t>(i);
      ClaimRow(record, row, slots[i], claiming[i - first], step, version);
      // The claims behind it are still those of an earlier step of the record.
      if (record != nullptr) record->num_rows = row + 1;
    }
  }
}

void Steps::ClaimRow(StepRecord* record, std::uint32_t step_row, std::int64_t slot, EntryIndex e,
                     RelStep step, std::uint64_t version) {
  if (record != nullptr) record->claims[step_row] = Claim{};
  if (slot == kPaddingSlot) {
    ++stats_.rows_padding;
    return;
  }
  const bool asked = slot >= 0;
  const std::uint32_t row = pages_.RowOf(KnownSlot(slot), e);
  if (table_.hot(e).null) {
    ++stats_.rows_padding;
    return;
  }
  Entry& entry = pages_.EnsureEntry(e, step);
  if (!asked) ++stats_.rows_not_asked;
  PageIndex page = entry.page;
  if (page != kNoPage) {
    StampCell& cell = pages_.stamp(page, row);
    const Stamp stamp = cell.Load();
    const bool again = record != nullptr && stamp.pending_for(step);
    // A row that an earlier device step of another version may still write is not protected.
    const bool kept = pages_.Kept(pool_.hot(page).seal.set(), stamp, version) &&
                      !device_.Claimed(page, row, step, &version);
    if (again || kept) {
      cell.MarkHow(Provenance::kKept);
      ++stats_.rows_ignored;
      if (!again && record != nullptr && audit_ &&
          record->ignored.size() < record->ignored.capacity()) {
        record->ignored.push_back({.step_row = step_row,
                                   .page = page,
                                   .entry = e,
                                   .row = static_cast<std::uint16_t>(row),
                                   .asked = asked});
        pages_.PinPage(page);
      }
      return;
    }
    if (Pages::SeenByOthers(pool_.hot(page), row)) page = pages_.CopyOnWrite(e);
  } else {
    if (!asked && pages_.NoteNotAsked(e, row)) return;
    page = pages_.NewPage(e);
  }
  if (page == kNoPage) {
    ++stats_.no_page;
    stats_.rows_without_page += asked ? 1 : 0;
    return;
  }
  // What earlier device steps have yet to land here has been written over, also where this step
  // leaves no row. As after a dropped device step, a protected row of theirs beats a missing one.
  const bool wrote_before = device_.Claimed(page, row, step);
  const bool replaces = asked && record != nullptr;
  if (wrote_before) {
    device_.Revoke(page, row, step, pool_.hot(page).seal.set() && !replaces ? &version : nullptr);
  }
  StampCell& cell = pages_.stamp(page, row);
  if (!asked) {
    cell.Store(Stamp::Absent(Reason::kNotCaptured));
  } else if (record == nullptr) {
    cell.Store(Stamp::Absent(Reason::kCapacity));
  } else {
    ++stats_.rows_claimed;
    Claim& claim = record->claims[step_row];
    claim.page = page;
    claim.row = static_cast<std::uint16_t>(row);
    // What a cancelled step leaves: that the KV of an older row is still there, and the row is not;
    // or why there was none.
    const Stamp before = cell.Load();
    claim.if_cancelled = before.live() || wrote_before ? Reason::kCapacity : before.reason();
    claim.pinned = step_row == 0 || record->claims[step_row - 1].page != page;
    if (claim.pinned) pages_.PinPage(page);
    cell.Store(Stamp::Pending(step));
  }
  pages_.Claimed(page, version);
}

// ---- copies of pages with pending rows

void Steps::Extend(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key) {
  RelStep extended = 0;
  for (std::uint32_t row = 0; row < rows; ++row) {
    const Stamp stamp = pages_.stamp(to, row).Load();
    // Once per step: rows of one step are usually adjacent.
    if (stamp.pending() && stamp.step() != extended) {
      extended = stamp.step();
      bool seen = false;
      for (std::uint32_t earlier = 0; earlier < row && !seen; ++earlier) {
        const Stamp other = pages_.stamp(to, earlier).Load();
        seen = other.pending() && other.step() == extended;
      }
      if (!seen) ExtendPending(from, to, extended);
    }
  }
  if (device_.any()) device_.Extend(from, to, rows, by_key);
}

void Steps::ExtendPending(PageIndex from, PageIndex to, RelStep step) {
  const auto found =
      std::find_if(in_flight_.begin(), in_flight_.end(),
                   [step](const StepRecord* record) { return record->relative == step; });
  if (found == in_flight_.end() || (*found)->device) return;
  StepRecord* const record = *found;
  IndexClaims(*record);
  const auto extend = [&](std::uint32_t step_row, std::uint16_t row) {
    StampCell& cell = pages_.stamp(to, row);
    const Stamp stamp = cell.Load();
    if (!stamp.pending_for(step)) return;
    if (record->copies.size() == record->copies.capacity()) {
      cell.Store(stamp.Missing(Reason::kCapacity));
      ++stats_.no_page;
      ++stats_.rows_without_page;
      return;
    }
    std::uint32_t& last = record->pages.FindOrAdd(to).side;
    record->copies.push_back({.step_row = step_row, .page = to, .row = row, .next = last});
    last = static_cast<std::uint32_t>(record->copies.size() - 1);
    pages_.PinPage(to);
  };
  const PageClaims::List* const list = record->pages.Find(from);
  if (list == nullptr) return;
  for (std::uint32_t run = list->claim; run != PageClaims::kNone; run = record->next_run[run]) {
    for (std::uint32_t i = run; i < record->num_rows && record->claims[i].page == from; ++i) {
      if (i > run && record->claims[i].pinned) break;
      extend(i, record->claims[i].row);
    }
  }
  for (std::uint32_t i = list->side; i != PageClaims::kNone; i = record->copies[i].next) {
    const SideRow side = record->copies[i];
    extend(side.step_row, side.row);
  }
}

// Once per row of the step, however many pages are copied: looking through all its rows for each
// copy would cost rows times copies.
void Steps::IndexClaims(StepRecord& record) {
  if (record.indexed == 0) {
    const std::size_t rows = record.claims.size();
    record.next_run.resize(rows);
    record.pages.Reserve(rows + record.copies.capacity());
    // Only the pages that there may be: those of the claims, of rows to come, and of copies.
    const auto pinned =
        std::count_if(record.claims.begin(), record.claims.begin() + record.num_rows,
                      [](const Claim& claim) { return claim.pinned; });
    record.pages.Clear(static_cast<std::size_t>(pinned) + (record.batch_rows - record.num_rows) +
                       record.copies.capacity());
  }
  for (; record.indexed < record.num_rows; ++record.indexed) {
    const Claim& claim = record.claims[record.indexed];
    if (!claim.pinned) continue;
    std::uint32_t& first = record.pages.FindOrAdd(claim.page).claim;
    record.next_run[record.indexed] = first;
    first = record.indexed;
  }
}

// ---- end

StepRecord* Steps::Find(std::uint64_t step) const {
  for (StepRecord* record : in_flight_) {
    if (record->step == step) return record;
  }
  for (StepRecord* record : without_claims_) {
    if (record->step == step) return record;
  }
  return nullptr;
}

void Steps::Submit(StepRecord& record, StepRows* rows, std::uint64_t submitted_at) {
  record.state = StepRecord::State::kSubmitted;
  record.rows = rows;
  record.threw = false;
  record.given_up = false;
  record.overdue = false;
  record.submitted_at = submitted_at;
  submitted_.push_back(&record);
}

void Steps::ListSubmitted(std::uint64_t only_step, std::vector<StepRecord*>& candidates) const {
  candidates.clear();
  for (StepRecord* const record : submitted_) {
    if (only_step != 0 && record->step != only_step) continue;
    // Device steps land in step order, because the rows that each wrote are only known then.
    if (record->device && record != in_flight_.front()) continue;
    candidates.push_back(record);
  }
}

StepRecord* Steps::TakeAnySubmitted() {
  if (submitted_.empty()) return nullptr;
  StepRecord* const record = submitted_.back();
  submitted_.pop_back();
  return record;
}

void Steps::TakeSubmitted(StepRecord& record) {
  submitted_.erase(std::find(submitted_.begin(), submitted_.end(), &record));
}

void Steps::Revoke(const StepRecord& record, StepEnd how) {
  const bool drop = how == StepEnd::kDrop;
  if (record.device) {
    if (drop) device_.Invalidate(record);  // Cancel: a device step has not changed any stamp
    return;
  }
  const auto revoke = [&](PageIndex page, std::uint32_t row, const Claim& claim) {
    if (page == kNoPage) return;
    const Reason reason = drop ? Reason::kCapacity : claim.if_cancelled;
    StampCell& cell = pages_.stamp(page, row);
    // The landing thread may be publishing rows of a submitted step at the same time.
    for (Stamp stamp = cell.Load(); stamp.pending_for(record.relative); stamp = cell.Load()) {
      if (!cell.Exchange(stamp, stamp.Missing(reason))) continue;
      ++stats_.rows_missing[static_cast<std::size_t>(reason)];
      return;
    }
  };
  for (std::uint32_t i = 0; i < record.num_rows; ++i)
    revoke(record.claims[i].page, record.claims[i].row, record.claims[i]);
  for (const SideRow& side : record.copies)
    revoke(side.page, side.row, record.claims[side.step_row]);
}

void Steps::VoidAll(std::span<const std::uint64_t> open) {
  const auto lost = [&](const StepRecord& record) {
    return record.state == StepRecord::State::kBegun &&
           std::find(open.begin(), open.end(), record.step) == open.end();
  };
  for (std::size_t i = in_flight_.size(); i-- > 0;) {
    StepRecord& record = *in_flight_[i];
    Revoke(record, StepEnd::kDrop);
    if (record.device) {
      for (std::uint32_t claim = 0; claim < record.num_rows; ++claim)
        record.claims[claim].revoked = true;
      for (SideRow& side : record.copies)
        side.revoked = true;
    }
    if (!lost(record)) continue;
    ++stats_.steps_dropped;
    Retire(record);
  }
  for (std::size_t i = without_claims_.size(); i-- > 0;) {
    if (lost(*without_claims_[i])) Retire(*without_claims_[i]);
  }
}

void Steps::Retire(StepRecord& record) {
  Unpin(record);
  std::vector<StepRecord*>& list = record.without_claims ? without_claims_ : in_flight_;
  list.erase(std::find(list.begin(), list.end(), &record));
  if (record.device) device_.End(record);
  if (record.state == StepRecord::State::kSubmitted) pages_.core().CountEnded();
  record.device = false;
  record.without_claims = false;
  record.state = StepRecord::State::kFree;
  record.rows = nullptr;
  free_records_.push_back(&record);
  // Steps begin in order, so the first one left is the oldest.
  pages_.core().oldest_in_flight.store(
      in_flight_.empty() ? StoreCore::kNoStep : in_flight_.front()->step,
      std::memory_order_seq_cst);
}

void Steps::Unpin(StepRecord& record) {
  for (std::uint32_t i = 0; i < record.num_rows; ++i) {
    if (i + kPageAhead < record.num_rows && record.claims[i + kPageAhead].pinned) {
      __builtin_prefetch(&pool_.hot(record.claims[i + kPageAhead].page), 1);
    }
    if (record.claims[i].pinned) pages_.UnpinPage(record.claims[i].page);
  }
  for (const SideRow& side : record.copies)
    pages_.UnpinPage(side.page);
  for (const SideRow& side : record.ignored)
    pages_.UnpinPage(side.page);
  record.copies.clear();
  record.ignored.clear();
}

}  // namespace waymark
