// Pages: which page each block has, what holds a page, and which page a key finds. Rules 5
// (protected rows, copy-on-write) and 10 (keys) of docs/internals/architecture.md, and eviction.
// Internal to blockstore.
//
// The state is the parts': the block table, the page records and the key index, joined by
// the functions here. Everything here is guarded by the store's mutex.
#ifndef WAYMARK_BLOCKSTORE_STORE_PAGES_H_
#define WAYMARK_BLOCKSTORE_STORE_PAGES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/store/block_table.h"
#include "blockstore/store/key_index.h"
#include "blockstore/store/page_pool.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/store/stamp.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/store_core.h"
#include "blockstore/store/store_options.h"

namespace waymark {

// Two pages that were sealed with the same key, both pinned until the audit has compared them.
struct SecondSeal {
  PageIndex first = kNoPage;   // it was in the index
  PageIndex second = kNoPage;  // it was sealed later
};

class Pages {
 public:
  // `options`: as RoutingStore::Create completed them. The references must outlive the object.
  Pages(const StoreOptions& options, StoreCore& core, Stats& stats);

  // ---- the parts
  [[nodiscard]] StoreCore& core() const { return core_; }
  [[nodiscard]] PagePool& pool() { return pool_; }
  [[nodiscard]] const PagePool& pool() const { return pool_; }
  [[nodiscard]] BlockTable& table() { return table_; }
  [[nodiscard]] const BlockTable& table() const { return table_; }
  [[nodiscard]] KeyIndex& index() { return index_; }
  [[nodiscard]] StampCell& stamp(PageIndex page, std::uint32_t row) const {
    return core_.stamp(page, row);
  }
  [[nodiscard]] std::uint32_t page_tokens() const { return page_tokens_; }
  [[nodiscard]] std::uint32_t pages_per_block() const { return pages_per_block_; }

  // ---- entries of the table
  // The first entry of a block; kNoEntry for null blocks.
  [[nodiscard]] EntryIndex FirstEntry(std::int32_t block) const;
  // The entry of a slot. Multiplies, because a division a row would cost more than the rest.
  // Exact, because slots are below 2^43 and pages have at most 4096 rows.
  [[nodiscard]] EntryIndex EntryOf(std::uint64_t slot) const {
    if (page_shift_ >= 0) return static_cast<EntryIndex>(slot >> page_shift_);
    return static_cast<EntryIndex>((static_cast<unsigned __int128>(slot) * page_magic_) >> 64);
  }
  // The row of a slot in the page of its entry `e`.
  [[nodiscard]] std::uint32_t RowOf(std::uint64_t slot, EntryIndex e) const {
    return static_cast<std::uint32_t>(slot - std::uint64_t{e} * page_tokens_);
  }
  // The entry. If it did not exist, it now does, with one user and a life that starts at `step`.
  Entry& EnsureEntry(EntryIndex e, std::uint64_t step) {
    Entry& entry = table_.hot(e);
    if (!entry.exists) {
      entry.exists = true;
      entry.refs = 1;
      entry.life_start = step;
      table_.SetBirth(e, {});  // no Bind was told
    }
    return entry;
  }

  // A step of `version` writes rows of an entry, whatever becomes of them.
  void NoteVersion(EntryIndex e, std::uint64_t version) {
    if (!table_.has_births()) return;
    const Birth birth = table_.birth(e);
    if (core_.versions.Of(birth.step) != version) table_.SetBirth(e, {birth.step, 1});
  }

  // ---- the page of an entry
  // Gives the entry its first page of this life; kNoPage if there is none.
  PageIndex NewPage(EntryIndex e);
  // Why no page is free.
  [[nodiscard]] Cause NoPageCause() const;
  // A row that did not ask was written to an entry without a page: notes it in the entry's reason.
  // False if that reason is external KV: only a page can hold the reasons of single rows.
  [[nodiscard]] bool NoteNotAsked(EntryIndex e, std::uint32_t row);
  // Rule 5: gives the entry a page of its own, with all rows and the seal of the old one; kNoPage,
  // and the rows are lost, if there is none. If snapshots alone see the old one, and it is not
  // `rewound`, its key finds the new one from now on: what a key finds does not depend on readers.
  PageIndex CopyOnWrite(EntryIndex e, bool rewound = false);
  // Sets the seal of a page, or takes it away.
  void SetSeal(PageIndex page, const Seal& seal) {
    pool_.SetSeal(page, seal);
    if (pool_.hot(page).in_lru) UpdateEvictability(page);
  }
  // Rule 5: whether a snapshot or another block sees this row of the page.
  [[nodiscard]] static bool SeenByOthers(const PageHot& hot, std::uint32_t row) {
    return row < hot.high_water || hot.bindings > 1;
  }
  // Rule 5: whether a step of `version` leaves this row of a sealed page as it is.
  [[nodiscard]] bool Kept(bool sealed, Stamp stamp, std::uint64_t version) const {
    return sealed && stamp.valid() && core_.versions.Of(stamp.step()) == version;
  }
  // Before a step writes a row into a page that the entry found by key and that nobody else sees:
  // marks the rows so far as by key in their stamps, and the entry no more. REQUIRES: it has one.
  void MarkByKey(EntryIndex e);
  // Binds the entry to the page. REQUIRES: it has none.
  void Attach(EntryIndex e, PageIndex page);
  // Removes the entry from its page's list, and does nothing else to the page.
  void Unlink(EntryIndex e);
  // Takes the page from the entry, whose rows are then missing: `why`.
  void Detach(EntryIndex e, Why why);
  // Takes the page from the entry, which loses its rows. REQUIRES: it has one.
  void Lose(EntryIndex e, Cause cause);
  // An entry without a page does not get rows [0, rows) of `page`. Those that a request asked for
  // are lost. The others keep a reason, *never written* or the first one of external KV and not
  // captured that is there, except between lost ones. Returns how many were valid.
  std::uint32_t LoseRows(EntryIndex e, PageIndex page, std::uint32_t rows, Cause cause);

  // ---- what holds a page
  // Frees the page if nothing holds it; else notes whether it is detached, and lists it for
  // eviction if it may be evicted. Must be called after each change of what holds the page, except
  // PinPage.
  void UpdateEvictability(PageIndex page);
  void PinPage(PageIndex page) { ++pool_.hot(page).pins; }
  void UnpinPage(PageIndex page) {
    PageHot& hot = pool_.hot(page);
    if (--hot.pins == 0 && hot.referenced == 0) UpdateEvictability(page);
  }

  // ---- page copies
  // Between the two calls `source` (kNoPage: none) is not freed, and not evicted for its own copy.
  void BeginCopy(PageIndex source) {
    source_ = source;
    if (source != kNoPage) PinPage(source);
  }
  void EndCopy() {
    const PageIndex source = std::exchange(source_, kNoPage);
    if (source != kNoPage) UnpinPage(source);
  }
  // Copies rows [0, rows), bytes and stamps. `by_key`: the rows of `from` came by key.
  void CopyRows(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key);

  // ---- the key index
  // The page with the rows of (version, key, ordinal); kNoPage if there is none.
  [[nodiscard]] PageIndex FindKey(std::uint64_t version, std::uint32_t ordinal,
                                  const BlockKey& key) const;
  // The seal of page `ordinal` of a block. `key`: may be empty.
  [[nodiscard]] Seal MakeSeal(std::uint64_t step, std::uint64_t version, std::uint32_t ordinal,
                              const BlockKey& key) const;
  // Rule 10: puts the page, sealed or written under `version`, into the key index if it wins its
  // key. REQUIRES: a block has it, so that the index has no more pages than it has room for.
  void ContendForKey(PageIndex page, std::uint64_t version);
  // After each row that a step of `version` wrote: removes the page from the index if its rows no
  // longer match its index key, and notes that it may then get its seal's key.
  void Written(PageIndex page, std::uint64_t version) {
    const PageHot& hot = pool_.hot(page);
    if (hot.indexed || hot.seal.has_key) UpdateIndex(page, version);
  }
  // After the last row of an entry's page was written: notes a page that was sealed before.
  void WrittenToEnd(EntryIndex e) {
    if (table_.hot(e).seal.early) complete_.push_back(e);
  }
  // The noted pages that blocks still have contend, and are offered, after the own seals of a step
  // of `version`. None is then noted. Returns how many pages were looked at.
  std::size_t ContendWritten(std::uint64_t version);
  // Tells the seal sink, if there is one, of the page of an entry that was sealed with a key, if it
  // is complete; if it may become so, once its last row was written.
  void OfferSealed(EntryIndex e, std::uint64_t version, const BlockKey& key);
  // Removes all pages from the index.
  void ClearIndex();
  // Rows of the page that were written for requests that asked, whatever became of their ids.
  [[nodiscard]] std::uint32_t AskedRows(PageIndex page) const;
  // Pairs for the audit. Who removes one unpins its pages.
  [[nodiscard]] std::vector<SecondSeal>& second_seals() { return second_seals_; }

  // ---- snapshots
  // Pins the pages of the ticket's range, unless it was released meanwhile. `blocks`: those with
  // rows of the range. `owner`: its keys begin with the first of them. `told`: the last step.
  void PinSnapshot(SnapshotState& state, std::span<const BlockId> blocks,
                   const SnapshotOwner& owner = {}, std::uint64_t told = 0);
  // Names a page for a flight, by a block, else a snapshot, else the key index; nullopt if nothing
  // has it any more. Snapshots are searched, so this is for the audit alone.
  [[nodiscard]] std::optional<VoidedPage> NameOf(PageIndex page) const;
  // The page of a name; kNoPage if there is none.
  [[nodiscard]] PageIndex Named(const VoidedPage& name) const;
  // Takes back a snapshot that was released and applied.
  void ReclaimSnapshot(SnapshotState& state);
  // Takes back released snapshots until that many pages are free, or no snapshot is left. Called
  // before a record is applied that may need them: in a flight, snapshots come back between
  // records.
  void ReclaimFor(std::size_t pages);
  // Takes back at most `states` released snapshots; true if there was one.
  bool ReclaimSnapshots(std::size_t states);
  // Records were lost: no row of the table is known to belong to its block. Empties the table and
  // the index (capacity); counts of users stay.
  void ForgetBlocks(Cause cause);
  [[nodiscard]] std::uint64_t snapshots_taken() const { return snapshots_; }
  [[nodiscard]] std::uint64_t snapshots_live() const { return snapshots_live_; }

 private:
  // Whether what the entry has is not known to be of the request that a snapshot is for. `key`: of
  // its block; null: not given. Counts blocks without users.
  [[nodiscard]] bool IsOfOther(EntryIndex e, const SnapshotOwner& owner, const BlockKey* key);
  // Takes a free page, evicting one if necessary; kNoPage if none can be evicted.
  PageIndex TakePage();
  // Evicts the least recently used page; one that is held only if a page is free, since it stays
  // taken. False if none may be evicted.
  bool EvictOne();
  // Takes the page from its blocks, which lose its rows, and from the key index.
  void Evict(PageIndex page);
  // Whether a snapshot holds the page, or a row of it is being written or compared.
  [[nodiscard]] static bool Held(const PageHot& hot) { return hot.snapshots > 0 || hot.pins > 0; }
  // Whether the last row of the entry was not written yet.
  [[nodiscard]] bool IsEarly(const Entry& entry) const;
  // Written, for a page that is in the index or may get there.
  void UpdateIndex(PageIndex page, std::uint64_t version);
  // Removes one page from the key index.
  void Unindex(PageIndex page);

  void ReturnPage(PageIndex page);
  // A live snapshot; null if there is none with this number.
  [[nodiscard]] SnapshotState* FindSnapshot(std::uint64_t read_id) const;

  StoreCore& core_;
  Stats& stats_;
  const std::uint32_t page_tokens_;
  const std::uint32_t pages_per_block_;  // block_tokens / page_tokens
  const int page_shift_;                 // log2 of page_tokens_; -1: not a power of two
  const std::uint64_t page_magic_;       // 2^64 / page_tokens_, rounded up
  const std::uint64_t key_seed_;
  const bool audit_;
  SealSink* const seal_sink_;
  PagePool pool_;
  BlockTable table_;
  KeyIndex index_;
  PageIndex source_ = kNoPage;         // of the copy that is being made
  std::vector<PageIndex> contending_;  // written by the step, sealed with a key, not in the index
  std::vector<SecondSeal> second_seals_;     // its capacity is the limit
  std::vector<std::uint64_t> sealed_steps_;  // scratch of OfferSealed
  std::vector<BlockKey> early_keys_;  // of blocks with SealHot::early; empty without a seal sink
  std::vector<EntryIndex> complete_;  // sealed before the step, which wrote their last rows
  std::uint64_t snapshots_ = 0;
  std::uint64_t snapshots_live_ = 0;
  // The snapshots that were applied and have not come back, in the order of their records.
  SnapshotState* oldest_ = nullptr;
  SnapshotState* newest_ = nullptr;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_PAGES_H_
