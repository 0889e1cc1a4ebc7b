#include "blockstore/store/pages.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace waymark {

Pages::Pages(const StoreOptions& options, StoreCore& core, Stats& stats)
    : core_(core),
      stats_(stats),
      page_tokens_(core.page_tokens),
      pages_per_block_(static_cast<std::uint32_t>(options.block_tokens) / page_tokens_),
      page_shift_(std::has_single_bit(page_tokens_) ? std::countr_zero(page_tokens_) : -1),
      page_magic_(~std::uint64_t{0} / page_tokens_ + 1),
      key_seed_(options.key_seed),
      audit_(options.audit),
      seal_sink_(options.seal_sink.get()),
      pool_(options.num_pages, *options.spare_pages),
      table_(static_cast<std::size_t>(options.num_blocks) * pages_per_block_,
             options.seal_sink != nullptr),
      index_(pool_) {
  contending_.reserve(options.max_step_rows);
  second_seals_.reserve(256);
  if (seal_sink_ != nullptr) {
    sealed_steps_.resize(page_tokens_);
    early_keys_.resize(static_cast<std::size_t>(options.num_blocks));
    complete_.reserve(options.max_step_rows);
  }
  for (const BlockId block : options.null_blocks) {
    if (block.value() < 0) continue;
    for (std::uint32_t ordinal = 0; ordinal < pages_per_block_; ++ordinal) {
      table_.hot(static_cast<EntryIndex>(block.value()) * pages_per_block_ + ordinal).null = true;
    }
  }
}

// ---- entries

EntryIndex Pages::FirstEntry(std::int32_t block) const {
  if (block < 0) return kNoEntry;
  const EntryIndex e = static_cast<EntryIndex>(block) * pages_per_block_;
  return table_.hot(e).null ? kNoEntry : e;
}

// ---- what holds a page

void Pages::UpdateEvictability(PageIndex page) {
  PageHot& hot = pool_.hot(page);
  if (hot.free) return;
  const bool attached = hot.bindings > 0 || hot.indexed;
  if (!attached && !Held(hot)) {
    if (hot.in_lru) pool_.UnlinkLru(page);
    pool_.Free(page);
    return;
  }
  pool_.SetDetached(page, !attached);
  const bool listed = attached && hot.referenced == 0;
  const bool other_list =
      hot.list == EvictionList::kAside ? !Held(hot) : hot.list != PagePool::ListFor(hot);
  if (hot.in_lru && (!listed || other_list)) pool_.UnlinkLru(page);
  if (!hot.in_lru && listed) pool_.PushLru(page);
}

// ---- the page of an entry

void Pages::Attach(EntryIndex e, PageIndex page) {
  Entry& entry = table_.hot(e);
  PageHot& hot = pool_.hot(page);
  entry.page = page;
  if (hot.first_binding != kNoEntry) table_.previous_binding(hot.first_binding) = e;
  entry.next_binding = hot.first_binding;
  hot.first_binding = e;
  ++hot.bindings;
  if (entry.refs > 0) ++hot.referenced;
  UpdateEvictability(page);
}

void Pages::Unlink(EntryIndex e) {
  Entry& entry = table_.hot(e);
  PageHot& hot = pool_.hot(entry.page);
  const EntryIndex next = entry.next_binding;
  if (hot.first_binding == e) {
    hot.first_binding = next;
  } else {
    const EntryIndex previous = table_.previous_binding(e);
    table_.hot(previous).next_binding = next;
    if (next != kNoEntry) table_.previous_binding(next) = previous;
  }
  --hot.bindings;
  if (entry.refs > 0) --hot.referenced;
  entry.page = kNoPage;
  entry.lost = {};
}

void Pages::Detach(EntryIndex e, Why why) {
  Entry& entry = table_.hot(e);
  const PageIndex page = entry.page;
  if (page != kNoPage) {
    Unlink(e);
    UpdateEvictability(page);
  }
  entry.SetWhy(why);
  entry.by_key = false;
}

void Pages::Lose(EntryIndex e, Cause cause) {
  const PageIndex page = table_.hot(e).page;
  PinPage(page);
  Detach(e, Reason::kNeverWritten);
  LoseRows(e, page, page_tokens_, cause);
  UnpinPage(page);
}

std::uint32_t Pages::LoseRows(EntryIndex e, PageIndex page, std::uint32_t rows, Cause cause) {
  Why kept;
  std::uint16_t end = 0;
  for (std::uint32_t row = 0; row < rows; ++row) {
    const Stamp stamp = core_.stamp(page, row).Load();
    const Why why = stamp.why();
    if (stamp.asked() || (why != Reason::kExternalKv && why != Reason::kNotCaptured)) continue;
    if (end == 0) kept = why;
    if (why == kept) end = static_cast<std::uint16_t>(row + 1);
  }
  Entry& entry = table_.hot(e);
  entry.SetWhy(kept, end);
  std::uint32_t valid = 0;
  for (std::uint32_t row = 0; row < rows; ++row) {
    const Stamp stamp = core_.stamp(page, row).Load();
    valid += stamp.valid() ? 1 : 0;
    if (stamp.asked() || stamp.why() != entry.WhyOf(row)) {
      entry.lost.Add(row, cause);
    }
  }
  return valid;
}

// ---- allocation and eviction

// While a page is free, whether a page is held makes no difference: what is evicted does not depend
// on readers.
bool Pages::EvictOne() {
  const bool any_free = pool_.free() > 0;
  for (PageIndex page = pool_.LruHead(); page != kNoPage; page = pool_.LruHead()) {
    const bool source = page == source_ && pool_.hot(page).bindings > 0;
    if (!source && (any_free || !Held(pool_.hot(page)))) {
      Evict(page);
      return true;
    }
    pool_.SetAside(page);  // UpdateEvictability lists it again when it is not held any more
  }
  PageIndex page = any_free ? pool_.LruHead(EvictionList::kAside) : kNoPage;
  if (page != kNoPage && page == source_) page = pool_.hot(page).lru_next;
  if (page != kNoPage) Evict(page);
  return page != kNoPage;
}

void Pages::Evict(PageIndex page) {
  PageHot& hot = pool_.hot(page);
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
      __builtin_prefetch(&core_.stamp(later, 0), 1);
    }
  }
  if (hot.indexed) index_.Erase(page);
  while (hot.bindings > 0)
    Lose(hot.first_binding, Cause::kEvicted);
  --hot.pins;
  UpdateEvictability(page);
}

PageIndex Pages::TakePage() {
  PageIndex page = pool_.Take();
  if (page == kNoPage && EvictOne()) page = pool_.Take();
  // The stamps of a spare page are first touched here.
  if (page != kNoPage) core_.stamps.Grow((std::size_t{page} + 1) * page_tokens_);
  return page;
}

// A page that a snapshot holds would be free, or could be evicted.
Cause Pages::NoPageCause() const {
  if (pool_.detached() > 0) return Cause::kHeldByReaders;
  for (PageIndex page = pool_.LruHead(EvictionList::kAside); page != kNoPage;
       page = pool_.hot(page).lru_next) {
    if (pool_.hot(page).snapshots > 0) return Cause::kHeldByReaders;
  }
  return Cause::kNoPage;
}

PageIndex Pages::NewPage(EntryIndex e) {
  const PageIndex page = TakePage();
  if (page == kNoPage) return kNoPage;
  Entry& entry = table_.hot(e);
  for (std::uint32_t row = 0; row < page_tokens_; ++row)
    core_.stamp(page, row).Store(Stamp::Missing(entry.WhyOf(row)));
  entry.by_key = false;
  pool_.SetSeal(page, table_.seal(e));
  Attach(e, page);
  return page;
}

bool Pages::NoteNotAsked(EntryIndex e, std::uint32_t row) {
  Entry& entry = table_.hot(e);
  if (entry.why == Reason::kExternalKv) return false;
  const auto rows = static_cast<std::uint16_t>(row + 1);
  if (entry.why == Reason::kNeverWritten) {
    entry.SetWhy(Reason::kNotCaptured, rows, entry.lost);
  } else {
    // Capacity stays: a page is not taken from other rows for a better reason.
    entry.reason_rows = std::max(entry.reason_rows, rows);
  }
  return true;
}

PageIndex Pages::CopyOnWrite(EntryIndex e, bool rewound) {
  Entry& entry = table_.hot(e);
  const PageIndex old = entry.page;
  const bool by_key = entry.by_key;
  ++stats_.copies_on_write;
  BeginCopy(old);
  Detach(e, Reason::kNeverWritten);
  const PageHot& left = pool_.hot(old);
  const bool takes_key = left.indexed && left.bindings == 0 && !rewound;
  if (takes_key) Unindex(old);
  const PageIndex page = TakePage();
  if (page != kNoPage) {
    pool_.SetSeal(page, pool_.seal(old));
    Attach(e, page);
    CopyRows(old, page, page_tokens_, by_key);
    if (takes_key) index_.Insert(pool_.cold(old).index_key, page);
  } else {
    stats_.rows_without_page += LoseRows(e, old, page_tokens_, NoPageCause());
  }
  EndCopy();
  return page;
}

void Pages::MarkByKey(EntryIndex e) {
  Entry& entry = table_.hot(e);
  entry.by_key = false;
  for (std::uint32_t row = 0; row < page_tokens_; ++row) {
    StampCell& cell = core_.stamp(entry.page, row);
    cell.Store(cell.Load().WithHow(Provenance::kByKey));
  }
}

// ---- page copies

void Pages::CopyRows(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key) {
  std::memcpy(core_.row(to, 0), core_.row(from, 0), rows * core_.row_bytes);
  for (std::uint32_t row = 0; row < rows; ++row) {
    const Stamp stamp = core_.stamp(from, row).Load();
    core_.stamp(to, row).Store(by_key ? stamp.WithHow(Provenance::kByKey) : stamp);
  }
}

// ---- the key index

PageIndex Pages::FindKey(std::uint64_t version, std::uint32_t ordinal, const BlockKey& key) const {
  return index_.Find(IndexKey(key_seed_, version, ordinal, key));
}

Seal Pages::MakeSeal(std::uint64_t step, std::uint64_t version, std::uint32_t ordinal,
                     const BlockKey& key) const {
  if (key.size == 0) return {{step, false}, {}};
  return {{step, true}, {IndexKey(key_seed_, version, ordinal, key), version}};
}

void Pages::OfferSealed(EntryIndex e, std::uint64_t version, const BlockKey& key) {
  Entry& entry = table_.hot(e);
  if (seal_sink_ == nullptr || key.empty() || entry.by_key) return;
  if (IsEarly(entry)) {
    entry.seal.early = true;
    early_keys_[e / pages_per_block_] = key;
    return;
  }
  if (entry.page == kNoPage) return;
  for (std::uint32_t row = 0; row < page_tokens_; ++row) {
    const Stamp stamp = core_.stamp(entry.page, row).Load();
    // A row that was copied by key is of another pass, whose own page was offered.
    if (!stamp.valid() || stamp.how() == Provenance::kByKey) return;
    if (core_.versions.Of(stamp.step()) != version) return;
    sealed_steps_[row] = stamp.step();
  }
  seal_sink_->OnSealed({.key = key,
                        .ordinal = e % pages_per_block_,
                        .version = version,
                        .steps = sealed_steps_,
                        .ids = {core_.row(entry.page, 0), page_tokens_ * core_.row_bytes}});
}

bool Pages::IsEarly(const Entry& entry) const {
  if (entry.page == kNoPage) return entry.WhyOf(page_tokens_ - 1) == Reason::kNeverWritten;
  const Stamp last = core_.stamp(entry.page, page_tokens_ - 1).Load();
  return last.step() == 0 && last.why() == Reason::kNeverWritten;
}

void Pages::Unindex(PageIndex page) {
  index_.Erase(page);
  UpdateEvictability(page);
}

void Pages::ClearIndex() {
  for (std::size_t bucket = 0; bucket < index_.buckets().size(); ++bucket) {
    // Erase may move a later page into this bucket.
    while (index_.buckets()[bucket] != kNoPage)
      Unindex(index_.buckets()[bucket]);
  }
}

std::uint32_t Pages::AskedRows(PageIndex page) const {
  std::uint32_t asked = 0;
  for (std::uint32_t row = 0; row < page_tokens_; ++row)
    asked += core_.stamp(page, row).Load().asked() ? 1 : 0;
  return asked;
}

// Of several pages sealed with a key, the one with more rows that requests asked for is in the
// index; the first of them, if several have as many. What became of the ids does not count, so that
// all pipeline stages decide the same, also where they have not lost the same rows.
void Pages::ContendForKey(PageIndex page, std::uint64_t version) {
  PageHot& hot = pool_.hot(page);
  PageCold& cold = pool_.cold(page);
  if (!hot.seal.has_key || cold.seal.version != version) return;
  const PageIndex old = index_.Find(cold.seal.key);
  if (old == page) return;
  for (std::uint32_t row = 0; row < page_tokens_; ++row) {
    const Stamp stamp = core_.stamp(page, row).Load();
    if (stamp.asked() && core_.versions.Of(stamp.step()) != version) return;
  }
  if (old != kNoPage) {
    ++stats_.second_seals;
    if (audit_ && second_seals_.size() < second_seals_.capacity()) {
      second_seals_.push_back({old, page});
      PinPage(old);
      PinPage(page);
    }
    if (AskedRows(old) >= AskedRows(page)) return;
    Unindex(old);
  }
  if (hot.indexed) Unindex(page);
  index_.Insert(cold.seal.key, page);
}

void Pages::UpdateIndex(PageIndex page, std::uint64_t version) {
  const PageHot& hot = pool_.hot(page);
  if (hot.indexed) {
    const PageCold& cold = pool_.cold(page);
    if (!hot.seal.has_key || cold.index_key != cold.seal.key || cold.seal.version != version) {
      Unindex(page);
    }
  }
  if (hot.seal.has_key && !hot.indexed && (contending_.empty() || contending_.back() != page)) {
    contending_.push_back(page);
  }
}

std::size_t Pages::ContendWritten(std::uint64_t version) {
  const std::size_t looked_at = contending_.size() + complete_.size();
  for (const PageIndex page : contending_) {
    const PageHot& hot = pool_.hot(page);
    // The rows behind may have evicted or copied it: no block has it, so no key may find it.
    if (hot.seal.has_key && !hot.indexed && hot.bindings > 0) ContendForKey(page, version);
  }
  contending_.clear();
  for (const EntryIndex e : complete_) {
    Entry& entry = table_.hot(e);
    if (!entry.seal.early) continue;  // an own seal of the step was told for it, too
    entry.seal.early = false;
    OfferSealed(e, table_.cold(e).version, early_keys_[e / pages_per_block_]);
  }
  complete_.clear();
  return looked_at;
}

// ---- snapshots

bool Pages::IsOfOther(EntryIndex e, const SnapshotOwner& owner, const BlockKey* key) {
  const Entry& entry = table_.hot(e);
  if (!owner.given()) {
    const bool none = entry.refs <= 0 && !entry.users_lost;
    stats_.blocks_without_users += none && e % pages_per_block_ == 0 ? 1 : 0;
    return none;
  }
  if (entry.life_start > owner.last_step) return true;
  if (key == nullptr || key->empty()) return false;
  Seal seal = table_.seal(e);
  if (!seal.hot.has_key && entry.by_key) seal = pool_.seal(entry.page);
  return seal.hot.has_key &&
         seal.cold.key != IndexKey(key_seed_, seal.cold.version, e % pages_per_block_, *key);
}

void Pages::PinSnapshot(SnapshotState& state, std::span<const BlockId> blocks,
                        const SnapshotOwner& owner, std::uint64_t told) {
  state.read_id = ++snapshots_;
  ++snapshots_live_;
  state.newer = nullptr;
  state.older = newest_;
  (newest_ == nullptr ? oldest_ : newest_->newer) = &state;
  newest_ = &state;
  state.last_step = owner.last_step;
  state.pages.clear();
  if (state.ticket.released()) return;
  const std::int64_t page_tokens = page_tokens_;
  const std::int64_t begin = state.first / page_tokens;
  const std::int64_t last = state.last;
  const std::int64_t end = state.first == last ? begin : (last + page_tokens - 1) / page_tokens;
  try {
    state.pages.resize(static_cast<std::size_t>(end - begin));
    state.births.assign(table_.has_births() ? state.pages.size() : 0,
                        Birth{SnapshotState::kSinceLastStep});
  } catch (const std::bad_alloc&) {
    state.lost = Cause::kNoMemory;
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
      const auto of = (static_cast<std::size_t>(begin % pages_per_block_) + i) / pages_per_block_;
      const BlockKey* const key = of < owner.keys.size() ? &owner.keys[of] : nullptr;
      const bool other = entry.exists && IsOfOther(entries[i - copying], owner, key);
      if (table_.has_births() && !entry.null) {
        const bool known = entry.exists && !other;
        const Birth birth = known ? table_.birth(entries[i - copying]) : Birth();
        if (birth.step <= told) state.births[i] = birth;
      }
      if (!entry.exists) continue;
      out[i] = {entry.page, entry.why, entry.by_key, entry.reason_rows};
      if (entry.page == kNoPage) out[i].lost = entry.lost;
      if (other) out[i] = {kNoPage, Reason::kReleased};
      if (entry.page != kNoPage) __builtin_prefetch(&pool_.hot(entry.page), 1);
    }
    if (at < 2 * kGroup) continue;
    const std::size_t marked_end = std::min(copying, out.size());
    for (std::size_t i = at - 2 * kGroup; i < marked_end; ++i) {
      if (out[i].page == kNoPage) continue;
      PageHot& hot = pool_.hot(out[i].page);
      ++hot.snapshots;
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

// ---- lost records

void Pages::ForgetBlocks(Cause cause) {
  for (const SecondSeal& pair : second_seals_) {
    UnpinPage(pair.first);
    UnpinPage(pair.second);
  }
  second_seals_.clear();
  ClearIndex();
  for (EntryIndex e = 0; e < table_.size(); ++e) {
    Entry& entry = table_.hot(e);
    if (entry.null) continue;
    Detach(e, cause);
    entry.exists = true;  // also a block that was never named: what was lost may have named it
    // When the present life began is not known. A late seal is accepted, so a late truncation that
    // takes it back must be too; there is no row that it could remove by mistake.
    entry.life_start = 0;
    table_.SetBirth(e, {});
    entry.seal = {};
    entry.sealing = false;
    entry.moved = false;
    entry.found_by_key = false;
    entry.users_lost = true;
  }
}

}  // namespace waymark
