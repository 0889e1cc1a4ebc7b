// Steps whose slots only the device knows: they claim all rows that they may write, and land the
// rows that they wrote, in step order.

#include <algorithm>
#include <array>

#include "blockstore/store/store_impl.h"

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

}  // namespace

// ---- begin, truncate, drop

void RoutingStore::Impl::ClaimDeviceRows(StepRecord* record, std::span<const std::int64_t> slots,
                                         RelStep step, std::uint64_t version) {
  // Ordered by slot; within a slot, requests that asked for routing come first.
  device_range_.clear();
  for (const std::int64_t slot : slots) {
    if (slot == kPaddingSlot) {
      ++stats_.rows_padding;
    } else {
      device_range_.push_back({slot >= 0 ? slot : NotAsked(slot), slot < 0});
    }
  }
  std::sort(device_range_.begin(), device_range_.end());
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  device_range_.erase(std::unique(device_range_.begin(), device_range_.end(), same),
                      device_range_.end());
  if (record != nullptr) {
    record->num_rows = static_cast<std::uint32_t>(device_range_.size());
    for (std::size_t i = 0; i < device_range_.size(); ++i) {
      record->range[i] = device_range_[i].first;
      // A copy-on-write below may already read the claims of this record.
      record->claims[i] = Claim{};
    }
  }
  for (std::uint32_t i = 0; i < device_range_.size(); ++i)
    ClaimDeviceRow(record, i, step, version);
}

void RoutingStore::Impl::ClaimDeviceRow(StepRecord* record, std::uint32_t index, RelStep step,
                                        std::uint64_t version) {
  const auto [slot, not_asked] = device_range_[index];
  const EntryIndex e = EntryOf(static_cast<std::uint64_t>(slot));
  const auto row = static_cast<std::uint32_t>(static_cast<std::uint64_t>(slot) -
                                              std::uint64_t{e} * page_tokens_);
  if (table_.hot(e).null) {
    ++stats_.rows_padding;
    return;
  }
  PageIndex page = EnsureEntry(e, step).page;
  if (not_asked) ++stats_.rows_not_asked;
  if (page == kNoPage) {
    if (not_asked) return;  // there is no row, and none will be stored
    page = NewPage(e);
  } else if (SeenByOthers(pool_.hot(page), row)) {
    page = CopyOnWrite(e);
  }
  if (page == kNoPage) {
    ++stats_.no_page;
    return;
  }
  std::uint8_t& weights = pool_.hot(page).device_weights;
  weights = weights == kNoWeights || weights == DeviceWeights(version) ? DeviceWeights(version)
                                                                       : kSeveralWeights;
  if (record == nullptr) {
    InvalidateRow(page, row, SealedBefore(pool_.hot(page), step), step, version);
  } else {
    Claim& claim = record->claims[index];
    claim.page = page;
    claim.row = static_cast<std::uint16_t>(row);
    claim.asked = !not_asked;
    claim.sealed = SealedBefore(pool_.hot(page), step);
    claim.pinned = index == 0 || record->claims[index - 1].page != page;
    if (claim.pinned) {
      PinPage(page);
      record->pages.FindOrAdd(page).claim = index;
    }
  }
  UpdateIndexAfterClaim(page, version);
}

void RoutingStore::Impl::InvalidateRow(PageIndex page, std::uint32_t row, bool sealed, RelStep step,
                                       std::uint64_t version) {
  StampCell& cell = core_->stamp(page, row);
  Stamp stamp = cell.Load();
  // A row that an earlier device step of another version may still write is not protected.
  const bool changes = ClaimedByDeviceStep(page, row, step, &version);
  if (KeptByDeviceStep(sealed, stamp, version) && !changes) {
    cell.MarkHow(Provenance::kKept);
    return;
  }
  while (stamp.live() && stamp.step() <= step) {
    if (cell.Exchange(stamp, stamp.Missing(Reason::kCapacity))) {
      ++stats_.rows_missing[static_cast<std::size_t>(Reason::kCapacity)];
      break;
    }
    stamp = cell.Load();
  }
  RevokeDeviceClaims(page, row, step);
}

void RoutingStore::Impl::InvalidateRange(const StepRecord& record) {
  for (std::uint32_t i = 0; i < record.num_rows; ++i) {
    const Claim& claim = record.claims[i];
    if (claim.page == kNoPage || claim.revoked) continue;
    InvalidateRow(claim.page, claim.row, claim.sealed, record.relative, record.version);
  }
  for (std::size_t i = 0; i < record.copies.size(); ++i) {
    const SideRow side = record.copies[i];
    if (side.revoked) continue;
    InvalidateRow(side.page, side.row, side.sealed, record.relative, record.version);
  }
}

bool RoutingStore::Impl::ClaimedByDeviceStep(PageIndex page, std::uint32_t row, RelStep upto,
                                             const std::uint64_t* except_version) const {
  if (device_steps_ == 0 || pool_.hot(page).pins == 0) return false;
  for (const StepRecord* record : active_) {
    if (!record->device || record->relative > upto) continue;
    if (except_version != nullptr && record->version == *except_version) continue;
    const auto claims = [row](const auto& claim) { return claim.row == row && !claim.revoked; };
    if (AnyClaim(*record, page, claims)) return true;
  }
  return false;
}

void RoutingStore::Impl::RevokeDeviceClaims(PageIndex page, std::uint32_t row, RelStep upto) {
  if (device_steps_ == 0 || pool_.hot(page).pins == 0) return;
  for (StepRecord* record : active_) {
    if (!record->device || record->relative > upto) continue;
    AnyClaim(*record, page, [row](auto& claim) {
      claim.revoked |= claim.row == row;
      return false;
    });
  }
}

void RoutingStore::Impl::ExtendDeviceClaims(PageIndex from, PageIndex to, std::uint32_t rows,
                                            bool by_key) {
  for (StepRecord* record : active_) {
    if (!record->device) continue;
    const auto extend = [&](SideRow side) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (side.revoked || side.row >= rows) return;
      side.page = to;
      side.by_key |= by_key;
      if (record->copies.size() == record->copies.capacity()) {
        InvalidateRow(to, side.row, side.sealed, record->relative, record->version);
        ++stats_.no_page;
        return;
      }
      std::uint32_t& last = record->pages.FindOrAdd(to).side;
      side.next = last;
      last = static_cast<std::uint32_t>(record->copies.size());
      record->copies.push_back(side);
      PinPage(to);
    };
    const PageClaims::List* const list = record->pages.Find(from);
    if (list == nullptr) continue;
    for (std::uint32_t i = list->claim; i < record->num_rows && record->claims[i].page == from;
         ++i) {
      const Claim& claim = record->claims[i];
      extend({i, claim.page, kNoEntry, claim.row, claim.revoked, claim.sealed, claim.asked, false});
    }
    for (std::uint32_t i = list->side; i != PageClaims::kNone; i = record->copies[i].next)
      extend(record->copies[i]);
  }
}

bool RoutingStore::Impl::DeviceMayWrite(PageIndex page, std::uint32_t row) const {
  if (device_steps_ == 0 || pool_.hot(page).pins == 0) return false;
  const auto claims = [row](const auto& claim) {
    return claim.row == row && claim.asked && !claim.revoked;
  };
  return std::any_of(active_.begin(), active_.end(), [&](const StepRecord* record) {
    return record->device && AnyClaim(*record, page, claims);
  });
}

bool RoutingStore::Impl::HasDeviceClaims(const StepRecord& record, PageIndex page) {
  return AnyClaim(record, page, [](const auto& claim) { return !claim.revoked; });
}

// ---- land

// The rows that the step wrote become pending, as if it claimed them now, and then land like those
// of any step. In chunks, so that the lock is held for a short time only.
void RoutingStore::Impl::LandDeviceRows(StepRecord& record) {
  std::fill_n(record.step_row.begin(), record.num_rows, kNoStepRow);
  next_in_range_ = 0;
  for (std::size_t first = 0; first < slots_.size(); first += kLandingChunk) {
    const std::size_t n = std::min(kLandingChunk, slots_.size() - first);
    const std::span<std::uint8_t*> destinations(destinations_.data(), n);
    const std::span<Reason> verdicts(verdicts_.data(), n);
    std::array<std::uint32_t, kLandingChunk> claimed;
    bool wanted = false;
    {
      const MutexLock lock(mutex_);
      for (std::size_t i = 0; i < n; ++i) {
        claimed[i] = ResolveDeviceRow(record, static_cast<std::uint32_t>(first + i));
        destinations[i] = nullptr;
        if (claimed[i] == kNoStepRow) continue;
        const Claim& claim = record.claims[claimed[i]];
        destinations[i] = core_->row(claim.page, claim.row);
        wanted = true;
      }
    }
    if (!wanted) continue;
    record.rows->Land(static_cast<std::uint32_t>(first), destinations, verdicts);
    for (std::size_t i = 0; i < n; ++i) {
      if (destinations[i] == nullptr) continue;
      const Claim& claim = record.claims[claimed[i]];
      Publish(claim.page, claim.row, record.relative, verdicts[i]);
      if (verdicts[i] != Reason::kNone) destinations[i] = nullptr;
    }
    if (options_.count_experts) CountExperts(record, destinations);
  }
}

std::uint32_t RoutingStore::Impl::ResolveDeviceRow(StepRecord& record, std::uint32_t step_row) {
  const std::int64_t slot = slots_[step_row];
  if (slot == kPaddingSlot) return kNoStepRow;
  const std::int64_t known = slot >= 0 ? slot : NotAsked(slot);
  // The rows of a request are adjacent, and so are their slots.
  std::uint32_t index = next_in_range_;
  if (index >= record.num_rows || record.range[index] != known) {
    const auto end = record.range.begin() + record.num_rows;
    const auto found = std::lower_bound(record.range.begin(), end, known);
    if (found == end || *found != known) {
      ++stats_.rows_outside;
      return kNoStepRow;
    }
    index = static_cast<std::uint32_t>(found - record.range.begin());
  }
  next_in_range_ = index + 1;
  const Claim& own = record.claims[index];
  if (record.step_row[index] != kNoStepRow) {  // the first row of a slot is used
    ++stats_.rows_ignored;
    if (own.page != kNoPage && !own.revoked) {
      core_->stamp(own.page, own.row).MarkHow(Provenance::kKept);
    }
    for (const SideRow& side : record.copies) {
      if (side.step_row == index && !side.revoked) {
        core_->stamp(side.page, side.row).MarkHow(Provenance::kKept);
      }
    }
    return kNoStepRow;
  }
  record.step_row[index] = step_row;
  const EntryIndex e = EntryOf(static_cast<std::uint64_t>(known));
  const auto claim = [&](PageIndex page, std::uint16_t row, bool sealed,
                         bool by_key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    StampCell& cell = core_->stamp(page, row);
    const Stamp stamp = cell.Load();
    if (stamp.live() && stamp.step() > record.relative) {
      ++tally_.late;
      return false;
    }
    if (KeptByDeviceStep(sealed, stamp, record.version)) {
      cell.MarkHow(Provenance::kKept);
      ++stats_.rows_ignored;
      if (options_.audit && record.ignored.size() < record.ignored.capacity()) {
        record.ignored.push_back({step_row, page, e, row});
        PinPage(page);
      }
      return false;
    }
    if (!own.asked) {
      cell.Store(Stamp::Absent(Reason::kNotCaptured));
      return false;
    }
    ++stats_.rows_claimed;
    const Stamp pending = Stamp::Pending(record.relative);
    cell.Store(by_key ? pending.WithHow(Provenance::kByKey) : pending);
    return true;
  };
  for (const SideRow& side : record.copies) {
    if (side.step_row == index && !side.revoked) {
      claim(side.page, side.row, side.sealed, side.by_key);
    }
  }
  const bool there =
      own.page != kNoPage && !own.revoked && claim(own.page, own.row, own.sealed, false);
  return there ? index : kNoStepRow;
}

}  // namespace waymark
