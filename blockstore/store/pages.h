// Pages: which page each block has, what holds a page, and which page a key finds. Rules 4 (copy-
// on-write) and "Keys" of docs/architecture.md, and eviction. Internal to blockstore.
//
// The state is that of the parts: the block table, the page records and the key index, joined by
// the functions here. It knows the stamps of rows, but not the steps that claimed them: what those
// must do is behind RowsInFlight. Everything here is guarded by the store's mutex.
#ifndef WAYMARK_BLOCKSTORE_STORE_PAGES_H_
#define WAYMARK_BLOCKSTORE_STORE_PAGES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/store/block_table.h"
#include "blockstore/store/key_index.h"
#include "blockstore/store/page_pool.h"
#include "blockstore/store/stamp.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/store.h"
#include "blockstore/store/store_core.h"

namespace waymark {

// What pages ask of the steps in flight. Implemented by Steps.
class RowsInFlight {
 public:
  // The stamps of rows [0, rows) of `from` were copied to `to`: rows that a step has yet to land in
  // `from` will land in `to` too. `by_key`: the rows of `from` came by key.
  virtual void Extend(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key) = 0;
  // Whether a device step may still write this row and a request asked for it.
  [[nodiscard]] virtual bool MayWrite(PageIndex page, std::uint32_t row) const = 0;
  // Whether a device step of another version than `version` may still write a row of the page.
  [[nodiscard]] virtual bool OtherVersionMayWrite(PageIndex page, std::uint64_t version) const = 0;

 protected:
  ~RowsInFlight() = default;
};

// The bytes of rows [0, rows) are to be copied from one page to another, both pinned.
struct PageCopy {
  PageIndex from = kNoPage;
  PageIndex to = kNoPage;
  std::uint32_t rows = 0;
};

// Two pages that were sealed with the same key, both pinned until the audit has compared them.
struct SecondSeal {
  PageIndex first = kNoPage;   // it was in the index
  PageIndex second = kNoPage;  // it was sealed later
};

class Pages {
 public:
  // `options`: as RoutingStore::Create completed them. The references must outlive the object.
  Pages(const StoreOptions& options, StoreCore& core, Stats& stats);
  // Must be called once, before a page is copied or contends for a key.
  void SetRowsInFlight(RowsInFlight* in_flight) { in_flight_ = in_flight; }

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
  // The entry of a slot. Multiplies, because a division per row would cost more than the claim.
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
  Entry& EnsureEntry(EntryIndex e, RelStep step) {
    Entry& entry = table_.hot(e);
    if (!entry.exists) {
      entry.exists = true;
      entry.refs = 1;
      entry.life_start = step;
    }
    return entry;
  }

  // ---- the base of stamps
  [[nodiscard]] const StepBase& base() const { return *base_; }
  [[nodiscard]] StepBase& base() { return *base_; }
  // The same, to be kept by a snapshot or used without the lock.
  [[nodiscard]] const std::shared_ptr<StepBase>& shared_base() const { return base_; }
  // Rule 6. Starts `fresh`, whose first step is `step`: empties the table and the index (capacity),
  // and translates the steps of lives and seals. REQUIRES: no step is in flight.
  void Rebase(std::shared_ptr<StepBase> fresh, std::uint64_t step);

  // ---- the page of an entry
  // Gives the entry its first page of this life; kNoPage, with reason capacity, if there is none.
  PageIndex NewPage(EntryIndex e);
  // A row that did not ask was written to an entry without a page: notes it in the entry's reason.
  // False if that reason is external KV: only a page can hold the reasons of single rows.
  [[nodiscard]] bool NoteNotAsked(EntryIndex e, std::uint32_t row);
  // Rule 4: gives the entry a page of its own, with all rows and the seal of the old one; kNoPage,
  // with reason capacity, if there is none.
  PageIndex CopyOnWrite(EntryIndex e);
  // Sets the seal of a page, or takes it away.
  void SetSeal(PageIndex page, const Seal& seal) {
    pool_.SetSeal(page, seal);
    if (pool_.hot(page).in_lru) UpdateEvictability(page);
  }
  // Rule 4: whether a snapshot or another block sees this row of the page.
  [[nodiscard]] static bool SeenByOthers(const PageHot& hot, std::uint32_t row) {
    return row < hot.high_water || hot.bindings > 1;
  }
  // Rule 3: whether a step of `version` leaves this row as it is. `sealed`: the page's seal
  // protects it from the step.
  [[nodiscard]] bool Kept(bool sealed, Stamp stamp, std::uint64_t version) const {
    if (!sealed || !stamp.live()) return false;
    return base_->VersionOf(stamp.step()) == version;
  }
  // Binds the entry to the page. REQUIRES: it has none.
  void Attach(EntryIndex e, PageIndex page);
  // Removes the entry from its page's list, and does nothing else to the page.
  void Unlink(EntryIndex e);
  // Takes the page from the entry, whose rows are then missing for `reason`.
  void Detach(EntryIndex e, Reason reason);

  // ---- what holds a page
  // Frees the page if nothing holds it; else notes whether it is detached, and lists it for
  // eviction if it may be evicted. Must be called after each change of what holds the page, but for
  // PinPage.
  void UpdateEvictability(PageIndex page);
  void PinPage(PageIndex page) { ++pool_.hot(page).pins; }
  void UnpinPage(PageIndex page) {
    PageHot& hot = pool_.hot(page);
    if (--hot.pins == 0 && hot.referenced == 0) UpdateEvictability(page);
  }

  // ---- page copies (rule 6)
  static constexpr std::size_t kMaxCopies = 4096;  // queued at a time
  // Whether another copy can be queued.
  [[nodiscard]] bool CanCopy() const { return copies_.size() < kMaxCopies; }
  // Counts the valid and pending rows among [0, rows) of a page, which could not be copied because
  // no page was free.
  void CountLost(PageIndex page, std::uint32_t rows);
  // Copies rows [0, rows): stamps at once; bytes are queued for the landing thread. `by_key`: the
  // rows of `from` came by key. REQUIRES: CanCopy().
  void CopyRows(PageIndex from, PageIndex to, std::uint32_t rows, bool by_key);
  // Number of copies ever queued.
  [[nodiscard]] std::uint64_t copies_queued() const { return copies_queued_; }
  // Moves the oldest queued copies, at most `most`, to `copies`; false, and nothing changed, if
  // there are none. REQUIRES: `copies` is empty, with memory for kMaxCopies.
  bool TakeCopies(std::vector<PageCopy>& copies, std::size_t most = kMaxCopies);
  // Unpins the pages of copies whose bytes have been copied.
  void CopiesDone(std::span<const PageCopy> copies);

  // ---- the key index
  // The page with the rows of (version, key, ordinal); kNoPage if there is none.
  [[nodiscard]] PageIndex FindKey(std::uint64_t version, std::uint32_t ordinal,
                                  const BlockKey& key) const;
  // The seal of page `ordinal` of a block. `key`: may be empty.
  [[nodiscard]] Seal MakeSeal(RelStep step, std::uint64_t version, std::uint32_t ordinal,
                              const BlockKey& key) const;
  // Puts the page, sealed or claimed by `step`, into the key index if it wins its key. REQUIRES: a
  // block has it, so that the index has no more pages than it has room for.
  void ContendForKey(PageIndex page, RelStep step);
  // After each claim of a row by a step of `version`: removes the page from the index if its rows
  // no longer match its index key, and notes that it may then get its seal's key.
  void Claimed(PageIndex page, std::uint64_t version) {
    const PageHot& hot = pool_.hot(page);
    if (hot.indexed || hot.seal.has_key) UpdateIndex(page, version);
  }
  // The noted pages that blocks still have contend, after the seals of `step`. None is then noted.
  void ContendClaimed(RelStep step);
  // Removes all pages from the index.
  void ClearIndex();
  // Rows of the page that are valid or pending, or that a device step may still write.
  [[nodiscard]] std::uint32_t LiveRows(PageIndex page) const;
  // Pairs for the audit. Who removes one unpins its pages.
  [[nodiscard]] std::vector<SecondSeal>& second_seals() { return second_seals_; }

  // ---- snapshots
  // Pins the pages of the ticket's range, unless it was released meanwhile. `blocks`: those with
  // rows of the range. `upto` and `copies` are for the caller to set.
  void PinSnapshot(SnapshotState& state, std::span<const BlockId> blocks);
  // Names a page for a flight, by a block, else a snapshot, else the key index; nullopt if only
  // steps in flight hold it. Snapshots are searched, so this is for the audit alone.
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
  void ForgetBlocks();
  // While pages are short, copies rows of pages that snapshots alone hold out into memory of their
  // own, the oldest snapshots first, and gives the pages back: a page or two per call. False if
  // there is nothing to do, or StoreOptions::copy_out_bytes are in use. Landing thread.
  bool CopyOut();
  // The same for one page of a live snapshot, whatever is short, if snapshots alone hold it. For a
  // replay.
  void CopyOutPage(std::uint64_t read_id, std::size_t page);
  [[nodiscard]] std::uint64_t snapshots_taken() const { return snapshots_; }
  [[nodiscard]] std::uint64_t snapshots_live() const { return snapshots_live_; }

 private:
  // Takes a free page, evicting one if necessary; kNoPage if none can be evicted.
  PageIndex TakePage();
  // Evicts the least recently used page; one that is held only if a page is free, since it stays
  // taken. False if none may be evicted.
  bool EvictOne();
  // Takes the page from its blocks (capacity) and from the key index.
  void Evict(PageIndex page);
  // Whether a snapshot or a step in flight holds the page.
  [[nodiscard]] static bool Held(const PageHot& hot) { return hot.snapshots > 0 || hot.pins > 0; }
  // Claimed, for a page that is in the index or may get there.
  void UpdateIndex(PageIndex page, std::uint64_t version);
  // Removes one page from the key index.
  void Unindex(PageIndex page);

  void ReturnPage(PageIndex page);
  // A live snapshot; null if there is none with this number.
  [[nodiscard]] SnapshotState* FindSnapshot(std::uint64_t read_id) const;
  [[nodiscard]] bool wants_copies() const {
    return pool_.free() < copy_out_below_ && pool_.snapshots_only() > 0;
  }
  enum class CopyOutResult : std::uint8_t { kNone, kCopied, kNoRoom };
  // Copies page `i` of the snapshot out, unless snapshots are not alone in holding it or all copies
  // would have more than `limit` bytes; gives it back unless the snapshot is being read.
  CopyOutResult CopyOutPage(SnapshotState& state, std::size_t i, std::uint64_t limit);
  // Null if all copies would have more than `limit` bytes. Throws std::bad_alloc.
  std::shared_ptr<const CopiedPage> MakeCopy(PageIndex page, std::uint64_t limit);

  StoreCore& core_;
  RowsInFlight* in_flight_ = nullptr;
  Stats& stats_;
  const std::uint32_t page_tokens_;
  const std::uint32_t pages_per_block_;  // block_tokens / page_tokens
  const int page_shift_;                 // log2 of page_tokens_; -1: not a power of two
  const std::uint64_t page_magic_;       // 2^64 / page_tokens_, rounded up
  const std::uint64_t key_seed_;
  const bool audit_;
  const std::uint32_t copy_out_below_;  // with fewer free pages, pages are short
  const std::uint32_t copy_out_until_;  // with as many, they are not short any more
  const std::uint64_t copy_out_bytes_;
  std::shared_ptr<StepBase> base_;
  PagePool pool_;
  BlockTable table_;
  KeyIndex index_;
  std::vector<PageIndex> contending_;  // claimed by the step, sealed with a key, not in the index
  std::vector<PageCopy> copies_;       // queued for the landing thread
  std::uint64_t copies_queued_ = 0;
  std::vector<SecondSeal> second_seals_;  // its capacity is the limit
  std::uint64_t snapshots_ = 0;
  std::uint64_t snapshots_live_ = 0;
  // The snapshots that were applied and have not come back, in the order of their records.
  SnapshotState* oldest_ = nullptr;
  SnapshotState* newest_ = nullptr;
  // The copies of pages that further snapshots hold, until the page is free.
  std::unordered_map<PageIndex, std::shared_ptr<const CopiedPage>> copies_out_;
  SnapshotState* copying_ = nullptr;  // where CopyOut goes on: the snapshot (null: begins anew),
  std::size_t copying_page_ = 0;      // and its page
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_PAGES_H_
