#include "blockstore/store/device_steps.h"

#include <algorithm>

namespace waymark {
namespace {

// Whether `holds` returns true for a claim or side row of the step on the page. Claims are ordered
// by slot, so those on one page are adjacent.
template <class Record, class Holds>
bool AnyClaim(Record& record, PageIndex page, const Holds& holds) {
  const PageClaims::List* const list = record.pages.Find(page);
  if (list == nullptr) return false;
  for (std::uint32_t i = list->claim; i < record.num_rows && record.claims[i].page == page; ++i) {
    if (holds(record.claims[i])) return true;
  }
  for (std::uint32_t i = list->side; i != PageClaims::kNone; i = record.copies[i].next) {
    if (holds(record.copies[i])) return true;
  }
  return false;
}

// Whether the step may still write any row of the page.
bool HasClaims(const StepRecord& record, PageIndex page) {
  return AnyClaim(record, page, [](const auto& claim) { return !claim.revoked; });
}

}  // namespace

DeviceSteps::DeviceSteps(const StoreOptions& options, Pages& pages, Stats& stats)
    : pages_(pages), pool_(pages.pool()), stats_(stats), audit_(options.audit) {
  if (!options.device_slots) return;
  in_flight_.reserve(options.max_steps_in_flight);
  range_.reserve(options.max_step_rows);
}

// ---- begin and end

void DeviceSteps::Begin(StepRecord& record, std::size_t num_slots) {
  record.pages.Clear(num_slots + record.copies.capacity());
  in_flight_.push_back(&record);
}

void DeviceSteps::End(StepRecord& record) {
  in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), &record));
}

void DeviceSteps::ClaimRows(StepRecord* record, std::span<const std::int64_t> slots, RelStep step,
                            std::uint64_t version) {
  // Ordered by slot; within a slot, requests that asked for routing come first.
  range_.clear();
  for (const std::int64_t slot : slots) {
    if (slot == kPaddingSlot) {
      ++stats_.rows_padding;
    } else {
      range_.push_back({slot >= 0 ? slot : NotAsked(slot), slot < 0});
    }
  }
  std::sort(range_.begin(), range_.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  range_.erase(std::unique(range_.begin(), range_.end(), same), range_.end());
  if (record != nullptr) {
    record->num_rows = static_cast<std::uint32_t>(range_.size());
    for (std::size_t i = 0; i < range_.size(); ++i) {
      record->range[i] = range_[i].first;
      // A copy-on-write below may already read the claims of this record.
      record->claims[i] = {};
      record->first_copy[i] = PageClaims::kNone;
    }
  }
  for (std::uint32_t i = 0; i < range_.size(); ++i)
    ClaimRow(record, i, step, version);
}

void DeviceSteps::ClaimRow(StepRecord* record, std::uint32_t index, RelStep step,
                           std::uint64_t version) {
  const auto [slot, not_asked] = range_[index];
  const EntryIndex e = pages_.EntryOf(static_cast<std::uint64_t>(slot));
  const std::uint32_t row = pages_.RowOf(static_cast<std::uint64_t>(slot), e);
  if (pages_.table().hot(e).null) {
    ++stats_.rows_padding;
    return;
  }
  PageIndex page = pages_.EnsureEntry(e, step).page;
  if (not_asked) ++stats_.rows_not_asked;
  if (page == kNoPage) {
    if (not_asked && pages_.NoteNotAsked(e, row)) return;
    page = pages_.NewPage(e);
  } else if (Pages::SeenByOthers(pool_.hot(page), row)) {
    page = pages_.CopyOnWrite(e);
  }
  if (page == kNoPage) {
    ++stats_.no_page;
    return;
  }
  std::uint8_t& weights = pool_.hot(page).device_weights;
  weights = weights == kNoWeights || weights == DeviceWeights(version) ? DeviceWeights(version)
                                                                       : kSeveralWeights;
  if (record == nullptr) {
    InvalidateRow(page, row, pool_.hot(page).seal.set(), step, version,
                  not_asked ? Reason::kNotCaptured : Reason::kCapacity);
  } else {
    Claim& claim = record->claims[index];
    claim.page = page;
    claim.row = static_cast<std::uint16_t>(row);
    claim.asked = !not_asked;
    claim.sealed = pool_.hot(page).seal.set();
    claim.pinned = index == 0 || record->claims[index - 1].page != page;
    if (claim.pinned) {
      pages_.PinPage(page);
      record->pages.FindOrAdd(page).claim = index;
    }
  }
  pages_.Claimed(page, version);
}

void DeviceSteps::InvalidateRow(PageIndex page, std::uint32_t row, bool sealed, RelStep step,
                                std::uint64_t version, Reason reason) {
  StampCell& cell = pages_.stamp(page, row);
  Stamp stamp = cell.Load();
  // A row that an earlier device step of another version may still write is not protected.
  const bool changes = Claimed(page, row, step, &version);
  if (pages_.Kept(sealed, stamp, version) && !changes) {
    cell.MarkHow(Provenance::kKept);
    return;
  }
  while (!stamp.live() || stamp.step() <= step) {
    if (cell.Exchange(stamp, stamp.Missing(reason))) {
      ++stats_.rows_missing[static_cast<std::size_t>(reason)];
      break;
    }
    stamp = cell.Load();
  }
  Revoke(page, row, step, sealed ? &version : nullptr);
}

void DeviceSteps::Invalidate(const StepRecord& record, Reason reason) {
  // What a later step has done to a row that is missing stays its reason.
  const auto later = [this](const auto& claim) {
    return claim.kept && !pages_.stamp(claim.page, claim.row).Load().live();
  };
  for (std::uint32_t i = 0; i < record.num_rows; ++i) {
    const Claim& claim = record.claims[i];
    if (claim.page == kNoPage || claim.revoked || later(claim)) continue;
    InvalidateRow(claim.page, claim.row, claim.sealed, record.relative, record.version,
                  claim.asked ? reason : Reason::kNotCaptured);
  }
  for (std::size_t i = 0; i < record.copies.size(); ++i) {
    const SideRow side = record.copies[i];
    if (side.revoked || later(side)) continue;
    InvalidateRow(side.page, side.row, side.sealed, record.relative, record.version,
                  side.asked ? reason : Reason::kNotCaptured);
  }
}

// ---- what they may still write

bool DeviceSteps::Claimed(PageIndex page, std::uint32_t row, RelStep upto,
                          const std::uint64_t* except_version) const {
  if (in_flight_.empty() || pool_.hot(page).pins == 0) return false;
  for (const StepRecord* record : in_flight_) {
    if (record->relative > upto) continue;
    if (except_version != nullptr && record->version == *except_version) continue;
    const auto claims = [row](const auto& claim) { return claim.row == row && !claim.revoked; };
    if (AnyClaim(*record, page, claims)) return true;
  }
  return false;
}

void DeviceSteps::Revoke(PageIndex page, std::uint32_t row, RelStep upto,
                         const std::uint64_t* kept_version) {
  if (in_flight_.empty() || pool_.hot(page).pins == 0) return;
  for (StepRecord* record : in_flight_) {
    if (record->relative > upto) continue;
    const bool keep = kept_version != nullptr && record->version == *kept_version;
    AnyClaim(*record, page, [row, keep](auto& claim) {
      if (claim.row == row) (keep ? claim.kept : claim.revoked) = true;
      return false;
    });
  }
}

void DeviceSteps::Extend(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key) {
  for (StepRecord* record : in_flight_) {
    const auto extend = [&](SideRow side) {
      if (side.revoked || side.row >= rows) return;
      side.page = to;
      side.by_key |= by_key;
      if (record->copies.size() == record->copies.capacity()) {
        InvalidateRow(to, side.row, side.sealed, record->relative, record->version);
        ++stats_.no_page;
        return;
      }
      std::uint32_t& last = record->pages.FindOrAdd(to).side;
      std::uint32_t& first = record->first_copy[side.step_row];
      side.next = last;
      side.next_same = first;
      last = first = static_cast<std::uint32_t>(record->copies.size());
      record->copies.push_back(side);
      pages_.PinPage(to);
    };
    const PageClaims::List* const list = record->pages.Find(from);
    if (list == nullptr) continue;
    for (std::uint32_t i = list->claim; i < record->num_rows && record->claims[i].page == from;
         ++i) {
      const Claim& claim = record->claims[i];
      extend({i, claim.page, kNoEntry, claim.row, claim.revoked, claim.sealed, claim.asked,
              claim.kept, false});
    }
    for (std::uint32_t i = list->side; i != PageClaims::kNone; i = record->copies[i].next)
      extend(record->copies[i]);
  }
}

bool DeviceSteps::MayWrite(PageIndex page, std::uint32_t row) const {
  const auto claims = [row](const auto& claim) {
    return claim.row == row && claim.asked && !claim.revoked;
  };
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [&](const StepRecord* record) { return AnyClaim(*record, page, claims); });
}

bool DeviceSteps::MayWrite(PageIndex page) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [&](const StepRecord* record) { return HasClaims(*record, page); });
}

bool DeviceSteps::OtherVersionMayWrite(PageIndex page, std::uint64_t version) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(), [&](const StepRecord* record) {
    return record->version != version && HasClaims(*record, page);
  });
}

// ---- landing

bool DeviceSteps::StartLanding(StepRecord& record) {
  const auto slots = record.Slots();
  record.slots = slots.value_or(std::span<const std::int64_t>());
  record.next_in_range = 0;
  std::fill_n(record.step_row.begin(), record.num_rows, kNoStepRow);
  return slots.has_value();
}

void DeviceSteps::Resolve(StepRecord& record, std::size_t first, std::span<const Claim*> claims) {
  for (std::size_t i = 0; i < claims.size(); ++i)
    claims[i] = ResolveRow(record, static_cast<std::uint32_t>(first + i));
}

const Claim* DeviceSteps::ResolveRow(StepRecord& record, std::uint32_t step_row) {
  const std::int64_t slot = record.slots[step_row];
  if (slot == kPaddingSlot) return nullptr;
  const std::int64_t known = slot >= 0 ? slot : NotAsked(slot);
  // The rows of a request are adjacent, and so are their slots.
  std::uint32_t index = record.next_in_range;
  if (index >= record.num_rows || record.range[index] != known) {
    const auto end = record.range.begin() + record.num_rows;
    const auto found = std::lower_bound(record.range.begin(), end, known);
    if (found == end || *found != known) {
      ++stats_.rows_outside;
      return nullptr;
    }
    index = static_cast<std::uint32_t>(found - record.range.begin());
  }
  record.next_in_range = index + 1;
  const Claim& own = record.claims[index];
  if (record.step_row[index] != kNoStepRow) {  // the first row of a slot is used
    ++stats_.rows_ignored;
    if (own.page != kNoPage && !own.revoked) {
      pages_.stamp(own.page, own.row).MarkHow(Provenance::kKept);
    }
    for (std::uint32_t i = record.first_copy[index]; i != PageClaims::kNone;
         i = record.copies[i].next_same) {
      const SideRow& side = record.copies[i];
      if (!side.revoked) pages_.stamp(side.page, side.row).MarkHow(Provenance::kKept);
    }
    return nullptr;
  }
  record.step_row[index] = step_row;
  const EntryIndex e = pages_.EntryOf(static_cast<std::uint64_t>(known));
  const auto claim = [&](const auto& claimed, bool by_key) {
    const PageIndex page = claimed.page;
    const std::uint16_t row = claimed.row;
    StampCell& cell = pages_.stamp(page, row);
    const Stamp stamp = cell.Load();
    if (stamp.live() && stamp.step() > record.relative) {
      ++record.tally.late;
      return false;
    }
    if (pages_.Kept(claimed.sealed, stamp, record.version)) {
      cell.MarkHow(Provenance::kKept);
      ++stats_.rows_ignored;
      if (audit_ && record.ignored.size() < record.ignored.capacity()) {
        record.ignored.push_back(
            {.step_row = step_row, .page = page, .entry = e, .row = row, .asked = own.asked});
        pages_.PinPage(page);
      }
      return false;
    }
    if (!own.asked) {
      if (stamp.live() || !claimed.kept) cell.Store(Stamp::Absent(Reason::kNotCaptured));
      return false;
    }
    ++stats_.rows_claimed;
    const Stamp pending = Stamp::Pending(record.relative);
    cell.Store(by_key ? pending.WithHow(Provenance::kByKey) : pending);
    if (claimed.kept) cell.MarkHow(Provenance::kKept);
    return true;
  };
  for (std::uint32_t i = record.first_copy[index]; i != PageClaims::kNone;
       i = record.copies[i].next_same) {
    const SideRow& side = record.copies[i];
    if (!side.revoked) claim(side, side.by_key);
  }
  const bool there = own.page != kNoPage && !own.revoked && claim(own, false);
  return there ? &own : nullptr;
}

}  // namespace waymark
