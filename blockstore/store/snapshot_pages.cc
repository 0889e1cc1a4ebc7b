// Class Pages, what it does for snapshots.
#include <algorithm>
#include <new>

#include "blockstore/store/pages.h"

namespace waymark {

void Pages::PinSnapshot(SnapshotState& state, std::span<const BlockId> blocks) {
  state.read_id = ++snapshots_;
  ++snapshots_live_;
  state.newer = nullptr;
  state.older = newest_;
  (newest_ == nullptr ? oldest_ : newest_->newer) = &state;
  newest_ = &state;
  state.pages.clear();
  if (state.ticket.released()) return;
  const std::int64_t page_tokens = page_tokens_;
  const std::int64_t begin = state.first / page_tokens;
  const std::int64_t last = state.last;
  const std::int64_t end = state.first == last ? begin : (last + page_tokens - 1) / page_tokens;
  try {
    state.pages.resize(static_cast<std::size_t>(end - begin));
  } catch (const std::bad_alloc&) {
    state.lost = true;
    ++stats_.snapshots_lost;
    return;
  }
  // Entries and page records are not in the cache. Groups of pages go through three passes, which
  // prefetch for one another: find the entries, copy them, pin their pages.
  constexpr std::size_t kGroup = 16;
  const std::span<SnapshotPage> out(state.pages);
  EntryIndex found[2][kGroup];
  const BlockId* block = blocks.data();
  auto ordinal = static_cast<std::uint32_t>(begin % pages_per_block_);
  for (std::size_t at = 0; at < out.size() + 2 * kGroup; at += kGroup) {
    EntryIndex* const finding = found[at / kGroup % 2];
    const std::size_t found_end = std::min(at + kGroup, out.size());
    for (std::size_t i = at; i < found_end; ++i) {
      const std::int32_t id = block->value();
      const EntryIndex e =
          id < 0 ? kNoEntry : static_cast<EntryIndex>(id) * pages_per_block_ + ordinal;
      finding[i - at] = e;
      if (e != kNoEntry) table_.Prefetch(e);
      if (++ordinal == pages_per_block_) {
        ordinal = 0;
        ++block;
      }
    }
    if (at < kGroup) continue;
    const std::size_t copying = at - kGroup;
    const EntryIndex* const entries = found[copying / kGroup % 2];
    const std::size_t copied_end = std::min(at, out.size());
    for (std::size_t i = copying; i < copied_end; ++i) {
      out[i] = SnapshotPage{};
      if (entries[i - copying] == kNoEntry) continue;
      const Entry& entry = table_.hot(entries[i - copying]);
      if (!entry.exists) continue;
      out[i] = {entry.page, entry.reason, entry.by_key, false, entry.reason_rows};
      if (entry.page != kNoPage) __builtin_prefetch(&pool_.hot(entry.page), 1);
    }
    if (at < 2 * kGroup) continue;
    const std::size_t marked_end = std::min(copying, out.size());
    for (std::size_t i = at - 2 * kGroup; i < marked_end; ++i) {
      if (out[i].page == kNoPage) continue;
      PageHot& hot = pool_.hot(out[i].page);
      ++hot.snapshots;
      out[i].copied = hot.copied;
      // The snapshot may see only a part of its last page.
      const std::int64_t seen = i + 1 < out.size() ? page_tokens : last - (end - 1) * page_tokens;
      hot.high_water = std::max(hot.high_water, static_cast<std::uint16_t>(seen));
    }
  }
}

void Pages::ReclaimFor(std::size_t pages) {
  while (pool_.free() < pages && ReclaimSnapshots(1)) {
  }
}

bool Pages::ReclaimSnapshots(std::size_t states) {
  SnapshotState* state = nullptr;
  bool any = false;
  for (; states > 0 && core_.released.try_dequeue(state); --states) {
    any = true;
    ReclaimSnapshot(*state);
  }
  return any;
}

void Pages::ReclaimSnapshot(SnapshotState& state) {
  if (state.read_id == 0) return core_.FreeTicket(&state);
  for (std::size_t i = 0; i < state.pages.size(); ++i) {
    if (state.pages[i].page != kNoPage) ReturnPage(state.pages[i].page);
  }
  if (core_.flight != nullptr) {
    core_.flight->On({.kind = FlightRecordKind::kReleased, .read_id = state.read_id});
  }
  --snapshots_live_;
  (state.newer == nullptr ? newest_ : state.newer->older) = state.older;
  (state.older == nullptr ? oldest_ : state.older->newer) = state.newer;
  core_.FreeTicket(&state);
}

// A snapshot has one reference less to the page.
void Pages::ReturnPage(PageIndex page) {
  PageHot& hot = pool_.hot(page);
  if (--hot.snapshots > 0) return;
  hot.high_water = 0;
  if (hot.referenced == 0) UpdateEvictability(page);
}

SnapshotState* Pages::FindSnapshot(std::uint64_t read_id) const {
  SnapshotState* state = newest_;
  while (state != nullptr && state->read_id != read_id)
    state = state->older;
  return state;
}

// ---- names for a flight

std::optional<VoidedPage> Pages::NameOf(PageIndex page) const {
  const PageHot& hot = pool_.hot(page);
  VoidedPage name;
  if (hot.bindings > 0) {
    name.block = static_cast<std::int32_t>(hot.first_binding / pages_per_block_);
    name.ordinal = hot.first_binding % pages_per_block_;
    return name;
  }
  for (const SnapshotState* state = newest_; state != nullptr && hot.snapshots > 0;
       state = state->older) {
    for (std::size_t i = 0; i < state->pages.size(); ++i) {
      if (state->pages[i].page != page) continue;
      name.by = VoidedPage::By::kSnapshot;
      name.read_id = state->read_id;
      name.ordinal = static_cast<std::uint32_t>(i);
      return name;
    }
  }
  if (!hot.indexed) return std::nullopt;
  name.by = VoidedPage::By::kKey;
  name.index_key = pool_.cold(page).index_key;
  return name;
}

PageIndex Pages::Named(const VoidedPage& name) const {
  switch (name.by) {
    case VoidedPage::By::kBlock: {
      const EntryIndex blocks = table_.size() / pages_per_block_;
      const bool known = name.block >= 0 && static_cast<EntryIndex>(name.block) < blocks &&
                         name.ordinal < pages_per_block_;
      if (!known) return kNoPage;
      return table_.hot(static_cast<EntryIndex>(name.block) * pages_per_block_ + name.ordinal).page;
    }
    case VoidedPage::By::kSnapshot: {
      const SnapshotState* const state = FindSnapshot(name.read_id);
      const bool there = state != nullptr && name.ordinal < state->pages.size();
      return there ? state->pages[name.ordinal].page : kNoPage;
    }
    case VoidedPage::By::kKey:
      return index_.Find(name.index_key);
  }
  return kNoPage;
}

}  // namespace waymark
