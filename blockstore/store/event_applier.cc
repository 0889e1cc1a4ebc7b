#include "blockstore/store/event_applier.h"

#include <algorithm>

namespace waymark {
namespace {

constexpr std::size_t kEventsAhead = 8;

// The number of events at the front of `events` that are simultaneous: a group of moves, or one.
std::size_t GroupSize(std::span<const Event> events) {
  std::size_t at = 1;
  if (events[0].type != EventType::kMove) return at;
  while (events[at - 1].more != 0 && at < events.size() && events[at].type == EventType::kMove) {
    ++at;
  }
  return at;
}

}  // namespace

EventApplier::EventApplier(const StoreOptions& options, Pages& pages, DeviceSteps& device_steps,
                           Stats& stats)
    : pages_(pages),
      table_(pages.table()),
      pool_(pages.pool()),
      device_steps_(device_steps),
      stats_(stats),
      num_blocks_(options.num_blocks) {
  step_seals_.reserve(options.max_step_rows);
  moved_.reserve(1024);
}

// ---- the order

void EventApplier::Apply(std::span<const Event> events, std::uint64_t step) {
  const RelStep now = pages_.base().Relative(step);
  own_seals_ = false;
  for (std::size_t at = 0; at < events.size();) {
    const Event& event = events[at];
    if (at + kEventsAhead < events.size()) Prefetch(events[at + kEventsAhead]);
    if (event.type == EventType::kSeal && event.step == step) {
      NoteOwnSeal(event, now);
      ++at;
      continue;
    }
    const std::size_t group = GroupSize(events.subspan(at));
    if (event.type == EventType::kMove) {
      const std::span<const Event> pairs = events.subspan(at, group);
      if (own_seals_) SealBeforeMove(events.first(at), pairs, now);
      ApplyMove(pairs, now);
    } else {
      ApplyOne(event, now);
    }
    at += group;
  }
}

void EventApplier::ApplyOne(const Event& event, RelStep now) {
  if (event.type != EventType::kReset && pages_.FirstEntry(event.block) == kNoEntry) {
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
      return ApplySeal(event, now);
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

void EventApplier::Prefetch(const Event& event) const {
  if (event.block >= 0 && event.block < num_blocks_) {
    table_.Prefetch(static_cast<EntryIndex>(event.block) * pages_.pages_per_block());
  }
}

// ---- the seals of the step that is about to begin

void EventApplier::NoteOwnSeal(const Event& seal, RelStep now) {
  own_seals_ = true;
  const EntryIndex e = pages_.FirstEntry(seal.block);
  if (e == kNoEntry) return;
  Entry& entry = pages_.EnsureEntry(e, now);
  entry.sealing = true;
  __builtin_prefetch(&table_.cold(e), 1);
  if (entry.page != kNoPage) __builtin_prefetch(&pool_.cold(entry.page), 1);
}

void EventApplier::SealBeforeMove(std::span<const Event> before, std::span<const Event> pairs,
                                  RelStep now) {
  for (const Event& pair : pairs) {
    const EntryIndex e = pages_.FirstEntry(pair.src);
    if (e == kNoEntry || !table_.hot(e).sealing) continue;
    table_.hot(e).sealing = false;
    const auto seal = std::find_if(before.rbegin(), before.rend(), [&](const Event& event) {
      return event.type == EventType::kSeal && event.block == pair.src;
    });
    if (seal != before.rend()) ApplySeal(*seal, now);
  }
}

void EventApplier::ApplyOwnSeals(std::span<const Event> events, std::uint64_t step) {
  if (!own_seals_) return;
  // Backwards, so that of several seals of a block the last one is applied.
  step_seals_.clear();
  for (std::size_t at = events.size(); at-- > 0;) {
    const Event& event = events[at];
    if (event.type != EventType::kSeal || event.step != step) continue;
    const EntryIndex e = pages_.FirstEntry(event.block);
    if (e == kNoEntry) {
      ++stats_.events_on_null_blocks;
    } else if (table_.hot(e).sealing) {
      table_.hot(e).sealing = false;
      step_seals_.push_back(static_cast<std::uint32_t>(at));
    }
  }
  const RelStep now = pages_.base().Relative(step);
  for (std::size_t i = step_seals_.size(); i-- > 0;)
    ApplySeal(events[step_seals_[i]], now);
}

// ---- one function per event

void EventApplier::ApplyBind(const Event& event, RelStep now) {
  const EntryIndex first = pages_.FirstEntry(event.block);
  const bool keyed = event.key_size > 0;
  for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal) {
    const EntryIndex e = first + ordinal;
    Entry& entry = table_.hot(e);
    pages_.Detach(e, keyed ? Reason::kExternalKv : Reason::kNeverWritten);
    entry.exists = true;
    entry.refs = 1;
    entry.life_start = now;
    entry.seal = {};
    entry.sealing = false;
    if (!keyed) continue;
    const std::uint64_t version = pages_.base().VersionOf(now);
    const PageIndex page = pages_.FindKey(version, ordinal, event.GetKey());
    if (page == kNoPage || pool_.hot(page).bindings == 0xffff) continue;
    pages_.Attach(e, page);
    entry.by_key = true;
    ++stats_.hits_by_key;
  }
}

void EventApplier::ApplyRetain(const Event& event, RelStep now) {
  const EntryIndex first = pages_.FirstEntry(event.block);
  for (EntryIndex e = first; e < first + pages_.pages_per_block(); ++e) {
    Entry& entry = pages_.EnsureEntry(e, now);
    if (++entry.refs == 1 && entry.page != kNoPage) {
      ++pool_.hot(entry.page).referenced;
      pages_.UpdateEvictability(entry.page);
    }
  }
}

void EventApplier::ApplyRelease(const Event& event, RelStep now) {
  const EntryIndex first = pages_.FirstEntry(event.block);
  for (EntryIndex e = first; e < first + pages_.pages_per_block(); ++e) {
    Entry& entry = pages_.EnsureEntry(e, now);
    if (entry.refs <= 0) {
      ++stats_.releases_below_zero;
      continue;
    }
    if (--entry.refs == 0 && entry.page != kNoPage) {
      --pool_.hot(entry.page).referenced;
      pages_.UpdateEvictability(entry.page);
    }
  }
}

void EventApplier::ApplySeal(const Event& event, RelStep now) {
  const EntryIndex first = pages_.FirstEntry(event.block);
  const RelStep step = pages_.base().Relative(event.step);
  const std::uint64_t version = pages_.base().VersionOf(step);
  for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal) {
    const EntryIndex e = first + ordinal;
    const Entry& entry = pages_.EnsureEntry(e, now);
    const Seal seal = pages_.MakeSeal(step, version, ordinal, event.GetKey());
    table_.SetSeal(e, seal.After(entry.seal));
    const PageIndex page = entry.page;
    if (page == kNoPage) continue;  // the first claim allocates the page
    pool_.SetSeal(page, seal.After(pool_.hot(page).seal));
    pages_.ContendForKey(page, step);
  }
}

void EventApplier::ApplyCopy(const Event& event, RelStep now) {
  const EntryIndex src = pages_.FirstEntry(event.src);
  const EntryIndex dst = pages_.FirstEntry(event.block);
  if (src == kNoEntry) ++stats_.events_on_null_blocks;
  for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal) {
    const auto before = static_cast<std::int32_t>(ordinal * pages_.page_tokens());
    const bool all = event.rows == Event::kAllRows;
    const auto rows = static_cast<std::uint32_t>(
        all ? static_cast<std::int32_t>(pages_.page_tokens())
            : std::clamp(event.rows - before, 0, static_cast<std::int32_t>(pages_.page_tokens())));
    const EntryIndex d = dst + ordinal;
    Entry& to = pages_.EnsureEntry(d, now);
    // A null or unknown source has no rows.
    PageIndex page = kNoPage;
    Reason reason = Reason::kNeverWritten;
    bool by_key = false;
    if (src != kNoEntry) {
      const Entry& from = pages_.EnsureEntry(src + ordinal, now);
      page = from.page;
      reason = from.reason;
      by_key = from.by_key;
    }
    if (page != kNoPage) pages_.PinPage(page);
    pages_.Detach(d, Reason::kNeverWritten);
    to.life_start = now;
    to.seal = {};
    to.sealing = false;
    if (all) {
      to.reason = reason;
      if (page != kNoPage && pool_.hot(page).bindings < 0xffff) {
        pages_.Attach(d, page);
        to.by_key = by_key;
      } else if (page != kNoPage) {
        to.reason = Reason::kCapacity;
      }
    } else if (rows > 0 && page != kNoPage) {
      if (pages_.CanCopy() && pages_.NewPage(d) != kNoPage) {
        pages_.CopyRows(page, to.page, rows, by_key);
      } else {
        to.reason = Reason::kCapacity;
        ++stats_.no_page;
      }
    } else if (rows > 0 && reason != Reason::kNeverWritten && pages_.NewPage(d) != kNoPage) {
      for (std::uint32_t row = 0; row < rows; ++row) {
        pages_.stamp(to.page, row).Store(Stamp::Absent(reason));
      }
    }
    if (page != kNoPage) pages_.UnpinPage(page);
  }
}

// All pairs happen at once: all sources are emptied before any destination is set.
void EventApplier::ApplyMove(std::span<const Event> pairs, RelStep now) {
  moved_.clear();
  for (const Event& pair : pairs) {
    const EntryIndex src = pages_.FirstEntry(pair.src);
    if (src == kNoEntry || pages_.FirstEntry(pair.block) == kNoEntry)
      ++stats_.events_on_null_blocks;
    for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal) {
      moved_.emplace_back();
      if (src == kNoEntry) continue;
      const EntryIndex e = src + ordinal;
      Entry& entry = table_.hot(e);
      if (!entry.exists) continue;
      moved_.back() = {entry, table_.cold(e)};
      if (entry.page != kNoPage) {
        pages_.PinPage(entry.page);
        pages_.Unlink(e);
      }
      entry = Entry{};
    }
  }
  std::size_t at = 0;
  for (const Event& pair : pairs) {
    const EntryIndex dst = pages_.FirstEntry(pair.block);
    for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal, ++at) {
      const auto& [moved, seal] = moved_[at];
      if (dst != kNoEntry) {
        const EntryIndex e = dst + ordinal;
        pages_.Detach(e, Reason::kNeverWritten);
        Entry& entry = table_.hot(e);
        entry = Entry{};
        if (moved.exists) {
          entry = moved;
          entry.page = kNoPage;
          entry.next_binding = kNoEntry;
          entry.life_start = now;
          table_.cold(e) = seal;
          if (moved.page != kNoPage) pages_.Attach(e, moved.page);
        }
      }
      if (moved.page != kNoPage) pages_.UnpinPage(moved.page);
    }
  }
}

void EventApplier::ApplyTruncate(const Event& event) {
  const EntryIndex first = pages_.FirstEntry(event.block);
  const RelStep upto = pages_.base().Relative(event.step);
  const auto hit = [&](Stamp stamp) { return stamp.live() && stamp.step() <= upto; };
  for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal) {
    const EntryIndex e = first + ordinal;
    Entry& entry = table_.hot(e);
    if (!entry.exists) continue;
    // A late event, about an earlier life of the block.
    if (upto < entry.life_start) continue;
    if (entry.page == kNoPage) {
      // The seal was kept when the page was evicted. A rewind removes it: the next key differs.
      if (entry.seal.SetBy(upto)) entry.seal = {};
      continue;
    }
    const auto before = static_cast<std::int32_t>(ordinal * pages_.page_tokens());
    const auto from = static_cast<std::uint32_t>(std::max(0, event.rows - before));
    PageIndex page = entry.page;
    const bool rewound = pool_.hot(page).seal.SetBy(upto);
    bool copy_on_write = rewound;
    for (std::uint32_t row = from; row < pages_.page_tokens() && !copy_on_write; ++row) {
      copy_on_write =
          (hit(pages_.stamp(page, row).Load()) || device_steps_.Claimed(page, row, upto)) &&
          Pages::SeenByOthers(pool_.hot(page), row);
    }
    if (copy_on_write) page = pages_.CopyOnWrite(e);
    if (page != kNoPage) {
      for (std::uint32_t row = from; row < pages_.page_tokens(); ++row) {
        StampCell& cell = pages_.stamp(page, row);
        Stamp stamp = cell.Load();
        // The landing thread may be publishing this row at the same time; it is removed either way.
        while (hit(stamp) && !cell.Exchange(stamp, stamp.Missing(Reason::kNeverWritten))) {
          stamp = cell.Load();
        }
        device_steps_.Revoke(page, row, upto);
      }
      if (rewound) pool_.hot(page).seal = {};
    }
    if (rewound) entry.seal = {};
  }
}

void EventApplier::ApplyReset() {
  pages_.ClearIndex();
  for (EntryIndex e = 0; e < table_.size(); ++e) {
    if (!table_.hot(e).exists) continue;
    pages_.Detach(e, Reason::kNeverWritten);
    table_.hot(e) = Entry{};
  }
}

}  // namespace waymark
