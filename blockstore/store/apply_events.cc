// Events: the effect of each on the table. They have been validated; null blocks are ignored and
// counted here.

#include <algorithm>

#include "blockstore/store/store_impl.h"

namespace waymark {

namespace {

constexpr std::size_t kEventsAhead = 8;

}  // namespace

void RoutingStore::Impl::OpenSchedule(std::uint64_t step, std::uint64_t version) {
  schedule_ = step;
  version_ = version;
  if (core_->flight != nullptr) core_->flight->OnSchedule(step, version);
}

void RoutingStore::Impl::ApplyEvents(std::span<const Event> events) {
  stats_.events += events.size();
  if (core_->flight != nullptr) core_->flight->OnEvents(events);
  for (std::size_t at = 0; at < events.size();) {
    if (at + kEventsAhead < events.size()) PrefetchFor(events[at + kEventsAhead]);
    Apply(events, at);
  }
}

void RoutingStore::Impl::PrefetchFor(const Event& event) const {
  if (event.block >= 0 && event.block < options_.num_blocks) {
    table_.Prefetch(static_cast<EntryIndex>(event.block) * pages_per_block_);
  }
}

// ---- own seals, and pages found by key: what the next begin decides

void RoutingStore::Impl::KeepOwnSeal(const Event& event, RelStep now) {
  const EntryIndex first = FirstEntry(event.block);
  for (EntryIndex e = first; e < first + pages_per_block_; ++e)
    EnsureEntry(e, now).sealing = true;
  own_seals_.push_back(event);
  if (event.step == schedule_) own_seals_.back().step = 0;
}

void RoutingStore::Impl::ApplyOwnSeals(std::uint64_t step) {
  // Backwards, to find the last seal of each block. A block that was bound again (copied into,
  // moved onto, reset) after its seal has a new life, whose rows are of other tokens.
  for (std::size_t i = own_seals_.size(); i-- > 0;) {
    Event& seal = own_seals_[i];
    const EntryIndex e = FirstEntry(seal.block);
    if (e == kNoEntry || !table_.hot(e).sealing) {
      seal.block = -1;
      continue;
    }
    table_.hot(e).sealing = false;
    if (seal.step == 0) seal.step = step;
  }
  for (const Event& seal : own_seals_) {
    if (seal.block >= 0) ApplySeal(seal, base_->Relative(step));
  }
  own_seals_.clear();
}

void RoutingStore::Impl::LosePagesOfOtherVersions(std::uint64_t version) {
  for (std::size_t i = found_by_key_.size(); i-- > 0;) {
    const EntryIndex first = FirstEntry(found_by_key_[i].block);
    if (first == kNoEntry) continue;
    for (EntryIndex e = first; e < first + pages_per_block_; ++e) {
      Entry& entry = table_.hot(e);
      if (!entry.found_by_key) continue;
      entry.found_by_key = false;
      if (entry.page != kNoPage && found_by_key_[i].version != version) {
        Detach(e, Reason::kExternalKv);
      }
    }
  }
  found_by_key_.clear();
}

void RoutingStore::Impl::MoveNotes(std::span<const Event> pairs) {
  const auto moved = [&](std::int32_t block) {
    std::int32_t to = block;
    for (const Event& pair : pairs) {
      if (pair.src == block) return pair.block;
      if (pair.block == block) to = -1;  // another block moves onto it
    }
    return to;
  };
  for (Event& seal : own_seals_)
    seal.block = moved(seal.block);
  for (FoundByKey& found : found_by_key_)
    found.block = moved(found.block);
}

// ---- one event

void RoutingStore::Impl::Apply(std::span<const Event> events, std::size_t& at) {
  const Event& event = events[at++];
  const RelStep now = base_->Relative(last_ + 1);
  if (event.type == EventType::kMove) {
    const std::size_t first = at - 1;
    while (events[at - 1].more != 0 && at < events.size() && events[at].type == EventType::kMove) {
      ++at;
    }
    ApplyMove(events.subspan(first, at - first), now);
    return;
  }
  if (event.type != EventType::kReset && FirstEntry(event.block) == kNoEntry) {
    ++stats_.events_on_null_blocks;
    return;
  }
  switch (event.type) {
    case EventType::kBind:
      return ApplyBind(event, now);
    case EventType::kRetain:
      return ApplyRetain(event, now);
    case EventType::kRelease:
      return ApplyRelease(event, now);
    case EventType::kSeal:
      return IsOwnSeal(event) ? KeepOwnSeal(event, now) : ApplySeal(event, now);
    case EventType::kCopy:
      return ApplyCopy(event, now);
    case EventType::kTruncate:
      return ApplyTruncate(event);
    case EventType::kReset:
      return ApplyReset();
    case EventType::kMove:
      return;
  }
}

void RoutingStore::Impl::ApplyBind(const Event& event, RelStep step) {
  const EntryIndex first = FirstEntry(event.block);
  const bool keyed = event.key_size > 0;
  bool found = false;
  for (std::uint32_t ordinal = 0; ordinal < pages_per_block_; ++ordinal) {
    const EntryIndex e = first + ordinal;
    Entry& entry = table_.hot(e);
    Detach(e, keyed ? Reason::kExternalKv : Reason::kNeverWritten);
    entry.exists = true;
    entry.refs = 1;
    entry.life_start = step;
    entry.sealed = 0;
    entry.has_seal_key = false;
    entry.sealing = false;
    entry.found_by_key = false;
    if (!keyed) continue;
    const PageIndex page = index_.Find(IndexKey(key_seed_, version_, ordinal, event.GetKey()));
    if (page == kNoPage || pool_.hot(page).bindings == 0xffff) continue;
    Attach(e, page);
    entry.by_key = true;
    entry.found_by_key = true;
    found = true;
    ++stats_.hits_by_key;
  }
  if (found) found_by_key_.push_back({event.block, version_});
}

void RoutingStore::Impl::ApplyRetain(const Event& event, RelStep step) {
  const EntryIndex first = FirstEntry(event.block);
  for (EntryIndex e = first; e < first + pages_per_block_; ++e) {
    Entry& entry = EnsureEntry(e, step);
    if (++entry.refs == 1 && entry.page != kNoPage) {
      ++pool_.hot(entry.page).referenced;
      UpdateEvictability(entry.page);
    }
  }
}

void RoutingStore::Impl::ApplyRelease(const Event& event, RelStep step) {
  const EntryIndex first = FirstEntry(event.block);
  for (EntryIndex e = first; e < first + pages_per_block_; ++e) {
    Entry& entry = EnsureEntry(e, step);
    if (entry.refs <= 0) {
      ++stats_.releases_below_zero;
      continue;
    }
    if (--entry.refs == 0 && entry.page != kNoPage) {
      --pool_.hot(entry.page).referenced;
      UpdateEvictability(entry.page);
    }
  }
}

void RoutingStore::Impl::ApplySeal(const Event& event, RelStep now) {
  const EntryIndex first = FirstEntry(event.block);
  const RelStep step = base_->Relative(event.step);
  const bool keyed = event.key_size > 0;
  const std::uint64_t version = base_->VersionOf(step);
  for (std::uint32_t ordinal = 0; ordinal < pages_per_block_; ++ordinal) {
    const EntryIndex e = first + ordinal;
    Entry& entry = EnsureEntry(e, now);
    if (entry.sealed == 0) entry.sealed = step;
    entry.has_seal_key = keyed;
    EntryCold& cold = table_.cold(e);
    if (keyed) {
      cold.seal_key = IndexKey(key_seed_, version, ordinal, event.GetKey());
      cold.seal_version = version;
    }
    const PageIndex page = entry.page;
    if (page == kNoPage) continue;  // the first claim allocates the page
    PageHot& hot = pool_.hot(page);
    if (hot.sealed == 0) hot.sealed = step;
    hot.has_seal_key = keyed;
    pool_.cold(page).seal_key = cold.seal_key;
    pool_.cold(page).seal_version = cold.seal_version;
    ContendForKey(page, step);
  }
}

void RoutingStore::Impl::ApplyCopy(const Event& event, RelStep step) {
  const EntryIndex src = FirstEntry(event.src);
  const EntryIndex dst = FirstEntry(event.block);
  if (src == kNoEntry) ++stats_.events_on_null_blocks;
  bool any_found_by_key = false;
  for (std::uint32_t ordinal = 0; ordinal < pages_per_block_; ++ordinal) {
    const auto before = static_cast<std::int32_t>(ordinal * page_tokens_);
    const bool all = event.rows == Event::kAllRows;
    const auto rows = static_cast<std::uint32_t>(
        all ? static_cast<std::int32_t>(page_tokens_)
            : std::clamp(event.rows - before, 0, static_cast<std::int32_t>(page_tokens_)));
    const EntryIndex d = dst + ordinal;
    Entry& to = EnsureEntry(d, step);
    // A null or unknown source has no rows.
    PageIndex page = kNoPage;
    Reason reason = Reason::kNeverWritten;
    bool by_key = false;
    bool found_by_key = false;
    if (src != kNoEntry) {
      const Entry& from = EnsureEntry(src + ordinal, step);
      page = from.page;
      reason = from.reason;
      by_key = from.by_key;
      found_by_key = from.found_by_key && rows > 0;
    }
    if (page != kNoPage) PinPage(page);
    Detach(d, Reason::kNeverWritten);
    to.life_start = step;
    to.sealed = 0;
    to.has_seal_key = false;
    to.sealing = false;
    to.found_by_key = found_by_key;
    any_found_by_key |= found_by_key;
    if (all) {
      to.reason = reason;
      if (page != kNoPage && pool_.hot(page).bindings < 0xffff) {
        Attach(d, page);
        to.by_key = by_key;
      } else if (page != kNoPage) {
        to.reason = Reason::kCapacity;
      }
    } else if (rows > 0 && page != kNoPage) {
      if (page_copies_.size() < page_copies_.capacity() && NewPage(d) != kNoPage) {
        CopyRows(page, to.page, rows, by_key);
      } else {
        to.reason = Reason::kCapacity;
        ++stats_.no_page;
      }
    } else if (rows > 0 && reason != Reason::kNeverWritten && NewPage(d) != kNoPage) {
      for (std::uint32_t row = 0; row < rows; ++row) {
        core_->stamp(to.page, row).Store(Stamp::Absent(reason));
      }
    }
    if (page != kNoPage) UnpinPage(page);
  }
  if (!any_found_by_key) return;
  const auto found = std::find_if(found_by_key_.rbegin(), found_by_key_.rend(),
                                  [&](const FoundByKey& f) { return f.block == event.src; });
  if (found != found_by_key_.rend()) found_by_key_.push_back({event.block, found->version});
}

// All pairs happen at once: all sources are emptied before any destination is set.
void RoutingStore::Impl::ApplyMove(std::span<const Event> pairs, RelStep step) {
  MoveNotes(pairs);
  moved_.clear();
  for (const Event& pair : pairs) {
    const EntryIndex src = FirstEntry(pair.src);
    if (src == kNoEntry || FirstEntry(pair.block) == kNoEntry) ++stats_.events_on_null_blocks;
    for (std::uint32_t ordinal = 0; ordinal < pages_per_block_; ++ordinal) {
      moved_.emplace_back();
      if (src == kNoEntry) continue;
      const EntryIndex e = src + ordinal;
      Entry& entry = table_.hot(e);
      if (!entry.exists) continue;
      moved_.back() = {entry, table_.cold(e)};
      if (entry.page != kNoPage) {
        PinPage(entry.page);
        Unlink(e);
      }
      entry = Entry{};
    }
  }
  std::size_t at = 0;
  for (const Event& pair : pairs) {
    const EntryIndex dst = FirstEntry(pair.block);
    for (std::uint32_t ordinal = 0; ordinal < pages_per_block_; ++ordinal, ++at) {
      const auto& [moved, cold] = moved_[at];
      if (dst != kNoEntry) {
        const EntryIndex e = dst + ordinal;
        Detach(e, Reason::kNeverWritten);
        Entry& entry = table_.hot(e);
        entry = Entry{};
        if (moved.exists) {
          entry = moved;
          entry.page = kNoPage;
          entry.next_binding = kNoEntry;
          entry.life_start = step;
          table_.cold(e) = cold;
          if (moved.page != kNoPage) Attach(e, moved.page);
        }
      }
      if (moved.page != kNoPage) UnpinPage(moved.page);
    }
  }
}

void RoutingStore::Impl::ApplyTruncate(const Event& event) {
  const EntryIndex first = FirstEntry(event.block);
  const RelStep upto = base_->Relative(event.step);
  const auto hit = [&](Stamp stamp) { return stamp.live() && stamp.step() <= upto; };
  for (std::uint32_t ordinal = 0; ordinal < pages_per_block_; ++ordinal) {
    const EntryIndex e = first + ordinal;
    Entry& entry = table_.hot(e);
    if (!entry.exists) continue;
    // A late event, about an earlier life of the block.
    if (upto < entry.life_start) continue;
    if (entry.page == kNoPage) {
      // The seal was kept when the page was evicted. A rewind removes it: the next key differs.
      if (entry.sealed <= upto) {
        entry.sealed = 0;
        entry.has_seal_key = false;
      }
      continue;
    }
    const auto before = static_cast<std::int32_t>(ordinal * page_tokens_);
    const auto from = static_cast<std::uint32_t>(std::max(0, event.rows - before));
    PageIndex page = entry.page;
    const bool rewound = pool_.hot(page).sealed != 0 && pool_.hot(page).sealed <= upto;
    bool copy_on_write = rewound;
    for (std::uint32_t row = from; row < page_tokens_ && !copy_on_write; ++row) {
      copy_on_write =
          (hit(core_->stamp(page, row).Load()) || ClaimedByDeviceStep(page, row, upto)) &&
          SeenByOthers(pool_.hot(page), row);
    }
    if (copy_on_write) page = CopyOnWrite(e);
    if (page != kNoPage) {
      for (std::uint32_t row = from; row < page_tokens_; ++row) {
        StampCell& cell = core_->stamp(page, row);
        Stamp stamp = cell.Load();
        // The landing thread may be publishing this row at the same time; it is removed either way.
        while (hit(stamp) && !cell.Exchange(stamp, stamp.Missing(Reason::kNeverWritten))) {
          stamp = cell.Load();
        }
        RevokeDeviceClaims(page, row, upto);
      }
      if (rewound) {
        pool_.hot(page).sealed = 0;
        pool_.hot(page).has_seal_key = false;
      }
    }
    if (rewound) {
      entry.sealed = 0;
      entry.has_seal_key = false;
    }
  }
}

void RoutingStore::Impl::ApplyReset() {
  ClearIndex();
  for (EntryIndex e = 0; e < table_.size(); ++e) {
    if (!table_.hot(e).exists) continue;
    Detach(e, Reason::kNeverWritten);
    table_.hot(e) = Entry{};
  }
}

}  // namespace waymark
