#include "blockstore/store/event_applier.h"

#include <algorithm>

namespace waymark {
namespace {

constexpr std::size_t kEventsAhead = 8;
constexpr std::int32_t kForgotten = -1;  // as the block of an own seal

// Rule 7: late news of `step` is about an earlier life of the block; not so in the schedule of a
// move, which the engine reported before.
bool IsOfEarlierLife(const Entry& entry, std::uint64_t step, std::uint64_t now) {
  return step < entry.life_start && !(entry.moved && entry.life_start == now);
}

}  // namespace

EventApplier::EventApplier(const StoreOptions& options, Pages& pages, Stats& stats)
    : pages_(pages),
      table_(pages.table()),
      pool_(pages.pool()),
      stats_(stats),
      num_blocks_(options.num_blocks),
      max_own_seals_(static_cast<std::size_t>(options.num_blocks) + options.max_step_rows),
      max_keyed_binds_(std::size_t{table_.size()} + options.max_step_rows) {
  own_seals_.reserve(max_own_seals_);  // address space, touched when it is used
  keyed_binds_.reserve(max_keyed_binds_);
  moved_.reserve(1024);
}

// ---- the order

void EventApplier::Apply(std::span<const Event> events, std::uint64_t last, std::uint64_t now) {
  stats_.events += events.size();
  for (std::size_t at = 0; at < events.size();) {
    if (at + kEventsAhead < events.size()) Prefetch(events[at + kEventsAhead]);
    const std::size_t group = GroupSize(events.subspan(at));
    if (events[at].type == EventType::kMove) {
      ApplyMove(events.subspan(at, group), now);
    } else {
      ApplyOne(events[at], last, now);
    }
    at += group;
  }
}

void EventApplier::ApplyOne(const Event& event, std::uint64_t last, std::uint64_t now) {
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
      return event.step == 0 || event.step > last ? PendSeal(event, now) : ApplySeal(event, now);
    case EventType::kCopy:
      return ApplyCopy(event, now);
    case EventType::kTruncate:
      return ApplyTruncate(event, now);
    case EventType::kReset:
      return ApplyReset(now);
    case EventType::kMove:
      return;
  }
}

void EventApplier::Prefetch(const Event& event) const {
  if (event.block >= 0 && event.block < num_blocks_) {
    table_.Prefetch(static_cast<EntryIndex>(event.block) * pages_.pages_per_block());
  }
}

// ---- pages found by key, which the version of the next step decides

void EventApplier::AddKeyedBind(EntryIndex e) {
  if (keyed_binds_.size() >= max_keyed_binds_) {
    // Of those that found a page by key, each entry stays once.
    std::erase_if(keyed_binds_, [this](EntryIndex at) {
      Entry& entry = table_.hot(at);
      const bool counts = entry.found_by_key;
      entry.found_by_key = false;
      return !counts;
    });
    for (const EntryIndex at : keyed_binds_)
      table_.hot(at).found_by_key = true;
  }
  keyed_binds_.push_back(e);
  table_.hot(e).found_by_key = true;
}

void EventApplier::SetVersion(std::uint64_t version) {
  if (version != version_) {
    for (const EntryIndex e : keyed_binds_) {
      const Entry& entry = table_.hot(e);
      if (entry.found_by_key && entry.page != kNoPage) pages_.Detach(e, Reason::kExternalKv);
    }
    ForgetKeyedBinds();
  }
  version_ = version;
}

void EventApplier::ForgetKeyedBinds() {
  for (const EntryIndex e : keyed_binds_)
    table_.hot(e).found_by_key = false;
  keyed_binds_.clear();
}

// ---- own seals

void EventApplier::PendSeal(const Event& seal, std::uint64_t now) {
  const EntryIndex e = pages_.FirstEntry(seal.block);
  for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal)
    pages_.EnsureEntry(e + ordinal, now);
  Entry& entry = table_.hot(e);
  if (entry.sealing) ForgetOwnSeal(seal.block);
  entry.sealing = true;
  __builtin_prefetch(&table_.cold(e), 1);
  if (entry.page != kNoPage) __builtin_prefetch(&pool_.cold(entry.page), 1);
  if (own_seals_.size() >= max_own_seals_) {
    std::erase_if(own_seals_, [](const Event& waiting) { return waiting.block == kForgotten; });
    own_seal_of_.Clear();
  }
  own_seals_.push_back(seal);
  own_seals_.back().step = 0;
}

std::optional<std::size_t> EventApplier::FindOwnSeal(std::int32_t block) {
  const EntryIndex e = pages_.FirstEntry(block);
  if (e == kNoEntry || !table_.hot(e).sealing) return std::nullopt;
  return own_seal_of_.Find(own_seals_, block, [](const Event& seal) { return seal.block; });
}

void EventApplier::ForgetOwnSeal(std::int32_t block) {
  const std::optional<std::size_t> waiting = FindOwnSeal(block);
  if (waiting) own_seals_[*waiting].block = kForgotten;
  table_.hot(pages_.FirstEntry(block)).sealing = false;
}

// The seal of a block moves with it, and that of the block it moves onto ends with its life.
void EventApplier::MoveOwnSeals(std::span<const Event> pairs) {
  if (own_seals_.empty()) return;
  seals_found_.clear();
  for (const Event& pair : pairs)
    seals_found_.push_back(FindOwnSeal(pair.src));
  for (const Event& pair : pairs) {
    if (const auto ended = FindOwnSeal(pair.block)) own_seals_[*ended].block = kForgotten;
  }
  for (const Event& pair : pairs)
    own_seal_of_.Erase(pair.src);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (!seals_found_[i].has_value()) continue;
    own_seals_[*seals_found_[i]].block = pairs[i].block;
    own_seal_of_.Set(pairs[i].block, *seals_found_[i]);
  }
}

void EventApplier::ApplyOwnSeals(std::uint64_t step) {
  for (Event& seal : own_seals_) {
    const EntryIndex e = pages_.FirstEntry(seal.block);
    if (e == kNoEntry) continue;  // forgotten, or moved onto a null block
    table_.hot(e).sealing = false;
    seal.step = step;
    ApplySeal(seal, step);
  }
  own_seals_.clear();
  own_seal_of_.Clear();
}

// Without a seal rows are written again with what was routed for their KV, which is never wrong.
void EventApplier::DiscardOwnSeals() {
  for (const Event& seal : own_seals_) {
    const EntryIndex e = pages_.FirstEntry(seal.block);
    if (e != kNoEntry) table_.hot(e).sealing = false;
  }
  own_seals_.clear();
  own_seal_of_.Clear();
}

void EventApplier::Forget(std::uint64_t version) {
  version_ = version;
  own_seals_.clear();
  own_seal_of_.Clear();
  keyed_binds_.clear();
}

// ---- one function per event

void EventApplier::ApplyBind(const Event& event, std::uint64_t now) {
  const EntryIndex first = pages_.FirstEntry(event.block);
  const bool keyed = event.key_size > 0;
  const Entry& before = table_.hot(first);
  stats_.binds_with_users += before.exists && before.refs > 0 && !before.users_lost ? 1 : 0;
  if (table_.hot(first).sealing) ForgetOwnSeal(event.block);
  for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal) {
    const EntryIndex e = first + ordinal;
    Entry& entry = table_.hot(e);
    pages_.Detach(e, keyed ? Reason::kExternalKv : Reason::kNeverWritten);
    entry.exists = true;
    entry.refs = 1;
    entry.life_start = now;
    entry.seal = {};
    entry.moved = false;
    entry.found_by_key = false;
    entry.users_lost = false;
    entry.has_birth = false;
    if (!keyed) continue;
    const PageIndex page = pages_.FindKey(version_, ordinal, event.GetKey());
    if (page == kNoPage || pool_.hot(page).bindings == 0xffff) continue;
    pages_.Attach(e, page);
    entry.by_key = true;
    AddKeyedBind(e);
    ++stats_.hits_by_key;
  }
}

void EventApplier::ApplyRetain(const Event& event, std::uint64_t now) {
  const EntryIndex first = pages_.FirstEntry(event.block);
  const Entry& before = table_.hot(first);
  const bool sealed = before.seal.set() || before.sealing || before.by_key;
  stats_.retains_unsealed += before.page != kNoPage && !sealed ? 1 : 0;
  for (EntryIndex e = first; e < first + pages_.pages_per_block(); ++e) {
    Entry& entry = pages_.EnsureEntry(e, now);
    if (++entry.refs == 1 && entry.page != kNoPage) {
      ++pool_.hot(entry.page).referenced;
      pages_.UpdateEvictability(entry.page);
    }
  }
}

void EventApplier::ApplyRelease(const Event& event, std::uint64_t now) {
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

void EventApplier::ApplySeal(const Event& event, std::uint64_t now) {
  const EntryIndex first = pages_.FirstEntry(event.block);
  const std::uint64_t version = pages_.core().versions.Of(event.step);
  for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal) {
    const EntryIndex e = first + ordinal;
    const Entry& entry = pages_.EnsureEntry(e, now);
    if (IsOfEarlierLife(entry, event.step, now)) continue;
    const Seal seal = pages_.MakeSeal(event.step, version, ordinal, event.GetKey());
    table_.SetSeal(e, seal.After(entry.seal));
    const PageIndex page = entry.page;
    if (page != kNoPage) {  // a seal makes no page: the first row does
      pages_.SetSeal(page, seal.After(pool_.hot(page).seal));
      pages_.ContendForKey(page, version);
    }
    pages_.OfferSealed(e, version, event.GetKey());
  }
}

void EventApplier::ApplyCopy(const Event& event, std::uint64_t now) {
  const EntryIndex src = pages_.FirstEntry(event.src);
  const EntryIndex dst = pages_.FirstEntry(event.block);
  if (src == kNoEntry) ++stats_.events_on_null_blocks;
  if (table_.hot(dst).sealing) ForgetOwnSeal(event.block);
  for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal) {
    const auto before = static_cast<std::int32_t>(ordinal * pages_.page_tokens());
    const bool all = event.rows == Event::kAllRows;
    const auto rows = static_cast<std::uint32_t>(
        all ? static_cast<std::int32_t>(pages_.page_tokens())
            : std::clamp(event.rows - before, 0, static_cast<std::int32_t>(pages_.page_tokens())));
    const EntryIndex d = dst + ordinal;
    Entry& to = pages_.EnsureEntry(d, now);
    // A null or unknown source has no rows.
    const Entry from = src != kNoEntry ? pages_.EnsureEntry(src + ordinal, now) : Entry{};
    const Birth birth = src != kNoEntry ? table_.birth(src + ordinal) : Birth();
    const PageIndex page = from.page;
    pages_.BeginCopy(page);
    pages_.Detach(d, Reason::kNeverWritten);
    if (to.refs == 0) to.refs = 1;
    to.life_start = now;
    to.seal = {};
    to.moved = false;
    table_.SetBirth(d, birth);
    to.found_by_key = false;
    if (from.found_by_key && rows > 0) AddKeyedBind(d);
    if (all) {
      if (page == kNoPage) {
        to.SetWhy(from.why, from.reason_rows, from.lost);
      } else if (pool_.hot(page).bindings < 0xffff) {
        pages_.Attach(d, page);
        to.by_key = from.by_key;
      } else {
        pages_.LoseRows(d, page, rows, Cause::kNoPage);
      }
    } else if (rows > 0 && page != kNoPage) {
      if (pages_.NewPage(d) != kNoPage) {
        pages_.CopyRows(page, to.page, rows, from.by_key);
      } else {
        ++stats_.no_page;
        stats_.rows_without_page += pages_.LoseRows(d, page, rows, pages_.NoPageCause());
      }
    } else if (rows > 0) {
      to.SetWhy(from.why, std::min(from.reason_rows, static_cast<std::uint16_t>(rows)),
                from.lost.First(rows));
    }
    pages_.EndCopy();
  }
}

// All pairs happen at once: all sources are emptied before any destination is set.
void EventApplier::ApplyMove(std::span<const Event> pairs, std::uint64_t now) {
  MoveOwnSeals(pairs);
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
      moved_.back() = {entry, table_.cold(e), table_.birth(e)};
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
      const auto& [moved, seal, birth] = moved_[at];
      if (dst != kNoEntry) {
        const EntryIndex e = dst + ordinal;
        pages_.Detach(e, Reason::kNeverWritten);
        Entry& entry = table_.hot(e);
        entry = Entry{};
        if (moved.exists) {
          entry = moved;
          if (moved.page != kNoPage) entry.lost = {};
          entry.page = kNoPage;
          entry.moved = moved.moved || moved.life_start < now;
          entry.seal.early = false;  // the key stays where it is
          entry.life_start = now;
          table_.SetBirth(e, birth);
          table_.cold(e) = seal;
          entry.found_by_key = false;
          if (moved.found_by_key) AddKeyedBind(e);
          if (moved.page != kNoPage) pages_.Attach(e, moved.page);
        }
      }
      if (moved.page != kNoPage) pages_.UnpinPage(moved.page);
    }
  }
}

void EventApplier::ApplyTruncate(const Event& event, std::uint64_t now) {
  const EntryIndex first = pages_.FirstEntry(event.block);
  const std::uint64_t upto = event.step;
  const auto hit = [&](std::uint32_t row, PageIndex page) {
    const std::uint64_t step = pages_.stamp(page, row).Load().step();
    return step != 0 && step <= upto;
  };
  for (std::uint32_t ordinal = 0; ordinal < pages_.pages_per_block(); ++ordinal) {
    const EntryIndex e = first + ordinal;
    Entry& entry = table_.hot(e);
    if (!entry.exists) continue;
    if (IsOfEarlierLife(entry, upto, now)) continue;
    if (entry.page == kNoPage) {
      // The seal was kept when the page was evicted. A rewind removes it: the next key differs.
      if (entry.seal.SetBy(upto)) entry.seal = {};
      continue;
    }
    const auto before = static_cast<std::int32_t>(ordinal * pages_.page_tokens());
    const auto from = static_cast<std::uint32_t>(std::max(0, event.rows - before));
    PageIndex page = entry.page;
    // A page that blocks share has the first step of their seals. This block may have been sealed
    // after `upto`.
    const bool sealed_later = entry.seal.set() && !entry.seal.SetBy(upto);
    const bool rewound = pool_.hot(page).seal.SetBy(upto) && !sealed_later;
    bool copy_on_write = rewound;
    for (std::uint32_t row = from; row < pages_.page_tokens() && !copy_on_write; ++row) {
      copy_on_write = hit(row, page) && Pages::SeenByOthers(pool_.hot(page), row);
    }
    if (copy_on_write) {
      page = pages_.CopyOnWrite(e, rewound);
      stats_.no_page += page == kNoPage ? 1 : 0;
    }
    if (page != kNoPage) {
      for (std::uint32_t row = from; row < pages_.page_tokens(); ++row) {
        if (!hit(row, page)) continue;
        const std::uint64_t writer = pages_.stamp(page, row).Load().step();
        // What no step seems to have written there is of later weights.
        const Versions& versions = pages_.core().versions;
        if (versions.Of(writer) != versions.Of(table_.birth(e).step)) table_.SetBirth(e, {});
        pages_.stamp(page, row).Store(Stamp());
      }
      if (rewound) pages_.SetSeal(page, {});
    }
    if (rewound) entry.seal = {};
  }
}

void EventApplier::ApplyReset(std::uint64_t now) {
  own_seals_.clear();
  own_seal_of_.Clear();
  keyed_binds_.clear();
  pages_.ClearIndex();
  for (EntryIndex e = 0; e < table_.size(); ++e) {
    Entry& entry = table_.hot(e);
    if (!entry.exists) continue;
    if (entry.page != kNoPage) pages_.Lose(e, Cause::kReset);
    Entry unknown;
    unknown.exists = true;  // for the reason of the rows that it had
    unknown.users_lost = true;
    unknown.life_start = now;
    unknown.SetWhy(entry.why, entry.reason_rows, entry.lost);
    entry = unknown;
    table_.SetBirth(e, {});
  }
}

}  // namespace waymark
