// Pages of table entries: allocation, release, copy-on-write, eviction and the key index.

#include <algorithm>

#include "blockstore/store/store_impl.h"

namespace waymark {

Entry& RoutingStore::Impl::EnsureEntry(EntryIndex e, RelStep step) {
  Entry& entry = table_.hot(e);
  if (!entry.exists) {
    entry.exists = true;
    entry.refs = 1;
    entry.life_start = step;
  }
  return entry;
}

EntryIndex RoutingStore::Impl::FirstEntry(std::int32_t block) const {
  if (block < 0) return kNoEntry;
  const EntryIndex e = static_cast<EntryIndex>(block) * pages_per_block_;
  return table_.hot(e).null ? kNoEntry : e;
}

// ---- what holds a page

void RoutingStore::Impl::UpdateEvictability(PageIndex page) {
  PageHot& hot = pool_.hot(page);
  if (hot.free) return;
  const bool bound_or_indexed = hot.bindings > 0 || hot.indexed;
  if (!bound_or_indexed && hot.snapshots == 0 && hot.pins == 0) {
    if (hot.in_lru) pool_.UnlinkLru(page);
    pool_.Free(page);
    return;
  }
  if (hot.in_lru && (hot.referenced > 0 || hot.lru_bound != (hot.bindings > 0))) {
    pool_.UnlinkLru(page);
  }
  if (hot.referenced == 0 && bound_or_indexed && hot.snapshots == 0 && hot.pins == 0 &&
      !hot.in_lru) {
    pool_.PushLru(page);
  }
}

void RoutingStore::Impl::PinPage(PageIndex page) {
  ++pool_.hot(page).pins;
}

void RoutingStore::Impl::UnpinPage(PageIndex page) {
  PageHot& hot = pool_.hot(page);
  if (--hot.pins == 0 && hot.referenced == 0) UpdateEvictability(page);
}

void RoutingStore::Impl::Attach(EntryIndex e, PageIndex page) {
  Entry& entry = table_.hot(e);
  PageHot& hot = pool_.hot(page);
  entry.page = page;
  entry.next_binding = hot.first_binding;
  hot.first_binding = e;
  ++hot.bindings;
  if (entry.refs > 0) ++hot.referenced;
  UpdateEvictability(page);
}

void RoutingStore::Impl::Unlink(EntryIndex e) {
  Entry& entry = table_.hot(e);
  PageHot& hot = pool_.hot(entry.page);
  EntryIndex* at = &hot.first_binding;
  while (*at != e)
    at = &table_.hot(*at).next_binding;
  *at = entry.next_binding;
  --hot.bindings;
  if (entry.refs > 0) --hot.referenced;
  entry.page = kNoPage;
  entry.next_binding = kNoEntry;
}

void RoutingStore::Impl::Detach(EntryIndex e, Reason reason) {
  Entry& entry = table_.hot(e);
  const PageIndex page = entry.page;
  if (page != kNoPage) {
    Unlink(e);
    UpdateEvictability(page);
  }
  entry.reason = reason;
  entry.by_key = false;
}

void RoutingStore::Impl::Unindex(PageIndex page) {
  index_.Erase(page);
  UpdateEvictability(page);
}

void RoutingStore::Impl::ClearIndex() {
  for (std::size_t bucket = 0; bucket < index_.buckets().size(); ++bucket) {
    // Erase may move a later page into this bucket.
    while (index_.buckets()[bucket] != kNoPage)
      Unindex(index_.buckets()[bucket]);
  }
}

bool RoutingStore::Impl::ReclaimSnapshots(std::size_t states) {
  SnapshotState* state = nullptr;
  bool any = false;
  for (; states > 0 && core_->released.try_dequeue(state); --states) {
    any = true;
    for (const SnapshotPage& pinned : state->pages) {
      if (pinned.page == kNoPage) continue;
      PageHot& hot = pool_.hot(pinned.page);
      if (--hot.snapshots > 0) continue;
      hot.high_water = 0;
      if (hot.referenced == 0) UpdateEvictability(pinned.page);
    }
    if (core_->flight != nullptr) core_->flight->OnReleased(state->read_id);
    // `pages` is not cleared: the next snapshot overwrites it, and saves the zero-fill of a resize.
    state->base.reset();
    --snapshots_live_;
    free_states_.push_back(state);
  }
  return any;
}

// ---- allocation and eviction

bool RoutingStore::Impl::EvictOne() {
  for (PageIndex page = pool_.LruHead(); page != kNoPage; page = pool_.LruHead()) {
    PageHot& hot = pool_.hot(page);
    if (hot.snapshots > 0 || hot.pins > 0) {
      pool_.UnlinkLru(page);  // UnpinPage, or the release of the snapshot, lists it again
      continue;
    }
    ++stats_.evictions;
    ++hot.pins;
    // Evictions come in runs, and the pages are not in the cache. Prefetches the record of the page
    // after the next one, and the index bucket of the next one, whose record is already here.
    if (hot.lru_next != kNoPage) {
      index_.Prefetch(pool_.cold(hot.lru_next).index_key);
      const PageIndex later = pool_.hot(hot.lru_next).lru_next;
      if (later != kNoPage) {
        __builtin_prefetch(&pool_.hot(later), 1);
        __builtin_prefetch(&pool_.cold(later), 1);
        __builtin_prefetch(&core_->stamp(later, 0), 1);
      }
    }
    if (hot.indexed) index_.Erase(page);
    while (hot.bindings > 0)
      Detach(hot.first_binding, Reason::kCapacity);
    UnpinPage(page);
    return true;
  }
  return false;
}

PageIndex RoutingStore::Impl::TakePage() {
  PageIndex page = pool_.Take();
  while (page == kNoPage && ReclaimSnapshots(1))
    page = pool_.Take();
  if (page == kNoPage && EvictOne()) page = pool_.Take();
  return page;
}

PageIndex RoutingStore::Impl::NewPage(EntryIndex e) {
  const PageIndex page = TakePage();
  Entry& entry = table_.hot(e);
  if (page == kNoPage) {
    entry.reason = Reason::kCapacity;
    return kNoPage;
  }
  const Stamp absent = Stamp::Absent(entry.reason);
  for (std::uint32_t row = 0; row < page_tokens_; ++row)
    core_->stamp(page, row).Store(absent);
  entry.by_key = false;
  PageHot& hot = pool_.hot(page);
  hot.sealed = entry.sealed;
  hot.has_seal_key = entry.has_seal_key;
  pool_.cold(page).seal_key = table_.cold(e).seal_key;
  pool_.cold(page).seal_version = table_.cold(e).seal_version;
  Attach(e, page);
  return page;
}

PageIndex RoutingStore::Impl::CopyOnWrite(EntryIndex e) {
  Entry& entry = table_.hot(e);
  const PageIndex old = entry.page;
  const bool by_key = entry.by_key;
  ++stats_.copies_on_write;
  PinPage(old);
  Detach(e, Reason::kCapacity);
  const bool room = page_copies_.size() < page_copies_.capacity();
  const PageIndex page = room ? TakePage() : kNoPage;
  if (page != kNoPage) {
    entry.reason = Reason::kNeverWritten;
    PageHot& hot = pool_.hot(page);
    hot.sealed = pool_.hot(old).sealed;
    hot.has_seal_key = pool_.hot(old).has_seal_key;
    pool_.cold(page).seal_key = pool_.cold(old).seal_key;
    pool_.cold(page).seal_version = pool_.cold(old).seal_version;
    Attach(e, page);
    CopyRows(old, page, page_tokens_, by_key);
  }
  UnpinPage(old);
  return page;
}

// A row that is pending in `from` becomes pending in both pages, and its step lands in both.
void RoutingStore::Impl::CopyRows(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key) {
  bool any_valid = false;
  RelStep extended = 0;
  pool_.hot(to).copied = true;
  for (std::uint32_t row = 0; row < rows; ++row) {
    Stamp stamp = core_->stamp(from, row).Load();
    if (by_key) stamp = stamp.WithHow(Provenance::kByKey);
    core_->stamp(to, row).Store(stamp);
    any_valid |= stamp.valid();
  }
  for (std::uint32_t row = 0; row < rows; ++row) {
    const Stamp stamp = core_->stamp(to, row).Load();
    // Once per step: rows of one step are usually adjacent.
    if (stamp.pending() && stamp.step() != extended) {
      extended = stamp.step();
      bool seen = false;
      for (std::uint32_t earlier = 0; earlier < row && !seen; ++earlier) {
        const Stamp other = core_->stamp(to, earlier).Load();
        seen = other.pending() && other.step() == extended;
      }
      if (!seen) ExtendPending(from, to, extended);
    }
  }
  pool_.hot(to).device_weights = pool_.hot(from).device_weights;
  if (device_steps_ > 0) {
    ExtendDeviceClaims(from, to, rows, by_key);
  }
  if (any_valid) {
    page_copies_.push_back({from, to, rows});
    ++copies_queued_;
    PinPage(from);
    PinPage(to);
  }
}

void RoutingStore::Impl::ExtendPending(PageIndex from, PageIndex to, RelStep step) {
  StepRecord* record = FindRecordByRelative(step);
  if (record == nullptr || record->device) return;
  const auto extend = [&](std::uint32_t step_row, std::uint16_t row)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                            StampCell& cell = core_->stamp(to, row);
                            const Stamp stamp = cell.Load();
                            if (!stamp.pending_for(step)) return;
                            if (record->copies.size() == record->copies.capacity()) {
                              cell.Store(stamp.Missing(Reason::kCapacity));
                              ++stats_.no_page;
                              return;
                            }
                            record->copies.push_back({step_row, to, kNoEntry, row});
                            PinPage(to);
                          };
  for (std::uint32_t i = 0; i < record->num_rows; ++i) {
    if (record->claims[i].page == from) extend(i, record->claims[i].row);
  }
  const std::size_t copies = record->copies.size();
  for (std::size_t i = 0; i < copies; ++i) {
    const SideRow side = record->copies[i];
    if (side.page == from) extend(side.step_row, side.row);
  }
}

// ---- the key index

std::uint32_t RoutingStore::Impl::LiveRows(PageIndex page) const {
  std::uint32_t live = 0;
  for (std::uint32_t row = 0; row < page_tokens_; ++row) {
    const bool is_live = core_->stamp(page, row).Load().live() || DeviceMayWrite(page, row);
    live += is_live ? 1 : 0;
  }
  return live;
}

// Of several pages sealed with a key, the one with most valid or pending rows is in the index; the
// first of them, if several have as many. Rows that a device step may still write count too, and
// landing changes nothing here: all pipeline stages have claimed the same rows at this point, but
// have not landed the same ones.
void RoutingStore::Impl::ContendForKey(PageIndex page, RelStep step) {
  PageHot& hot = pool_.hot(page);
  PageCold& cold = pool_.cold(page);
  const PageIndex old = hot.has_seal_key ? index_.Find(cold.seal_key) : kNoPage;
  if (old == page) return;
  const std::uint64_t version = base_->VersionOf(step);
  for (std::uint32_t row = 0; row < page_tokens_; ++row) {
    const Stamp stamp = core_->stamp(page, row).Load();
    if (stamp.live() && base_->VersionOf(stamp.step()) != version) return;
  }
  if (device_steps_ > 0 && hot.pins > 0) {
    for (const StepRecord* record : active_) {
      if (record->device && record->version != version && HasDeviceClaims(*record, page)) return;
    }
  }
  // A device step of another version may have landed here and not yet on another stage.
  const bool of_others =
      hot.device_weights != kNoWeights && hot.device_weights != DeviceWeights(version);
  if (of_others) return;
  if (!hot.has_seal_key) return;
  if (cold.seal_version != version) return;
  if (old != kNoPage) {
    ++stats_.second_seals;
    if (options_.audit && second_seals_.size() < second_seals_.capacity()) {
      second_seals_.push_back({old, page, page_tokens_});
      PinPage(old);
      PinPage(page);
    }
    if (LiveRows(old) >= LiveRows(page)) return;
    Unindex(old);
  }
  if (hot.indexed) Unindex(page);
  index_.Insert(cold.seal_key, page);
}

}  // namespace waymark
