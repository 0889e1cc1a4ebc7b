// BlockAllocator: the KV block pool for engines that have none: reference counts, a prefix index,
// and eviction of what nobody uses, least recently used leaves first.
//
// It owns a RoutingStore and writes down, in order, the events that the store must hear of. The
// engine schedules a step with the calls below, begins it with the events, and clears them.
//
// Example, where `keys` has one BlockKey for each full block of a prompt, and `batch` is its step:
//
//   // The prompt's cached blocks, each with a reference more; then blocks for the rest.
//   std::vector<BlockId> blocks(keys.size());
//   const std::size_t hits = pool->MatchPrefix(keys, blocks);
//   if (!pool->Allocate(std::span(blocks).subspan(hits))) {
//     return pool->Release(std::span(blocks).first(hits));  // no room: try again in a later step
//   }
//   // The forward of this step fills them.
//   for (std::size_t i = hits; i < blocks.size(); ++i) {
//     const BlockKey parent = i > 0 ? keys[i - 1] : BlockKey();
//     absl::Status sealed = pool->Seal(blocks[i], keys[i], parent, StepId(batch.step));
//     if (!sealed.ok()) return sealed;
//   }
//   batch.events = pool->pending_events().data();
//   batch.num_events = pool->pending_events().size();
//   const StepCode code = pool->store().BeginStep(batch);
//   pool->ClearEvents();
//
// A block is in one of three states, and every block that is not null is counted in exactly one:
//   used    referenced by somebody; never handed out, never evicted
//   cached  unreferenced, but its key hits: it stays until its memory is wanted
//   free    unreferenced, its content is of no use to anybody
//
// The key of a block names its tokens and all tokens before it (a prefix chain), so a block hits
// only when the blocks before it hit. Hence a cached block whose children are cached is not evicted
// before them. Where only such blocks are left (their children are in use, as when a sliding window
// releases the front of a sequence), the least recently used of them goes, and the blocks behind
// it, which nobody could hit any more, leave the index with it.
//
// Keys must change with whatever changes the KV (adapter, salt, ...). After a change of weights
// call Reset(): the index does not know versions.
//
// Threads: the engine's. No call waits; none allocates after warm-up, except for error messages.
// Every call is O(blocks given) hash look-ups and O(log blocks) steps for what becomes or stops
// being cached; the clipped MatchPrefix asks the store as well.
//
// Errors: a call that answers an error has changed nothing and written down no event.
//   InvalidArgument     a block id, row count, step or key out of range
//   FailedPrecondition  misuse of a block: released more often than retained, sealed under two
//                       keys, truncated or copied over while others use it
// Null blocks (negative, or StoreOptions::null_blocks) are legal in every list and do nothing.
#ifndef WAYMARK_BLOCKSTORE_STORE_BLOCK_ALLOCATOR_H_
#define WAYMARK_BLOCKSTORE_STORE_BLOCK_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/store/store.h"

namespace waymark {

class EvictionHeap;  // internal
class PrefixIndex;   // internal

class BlockAllocator {
 public:
  // Whether MatchPrefix trusts a hit whose routing rows are missing.
  enum class Clip : std::uint8_t {
    kNo,         // every block with KV is a hit
    kToCovered,  // only blocks all of whose rows are valid or pending in the store (CoveredPrefix).
                 // Blocks bound by events that the store has not heard of yet do not count
  };

  // A pool of options.num_blocks blocks (less the null blocks) over a new store. Errors as
  // RoutingStore::Create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<BlockAllocator>> Create(
      const StoreOptions& options);
  // Takes over `store`, of which no step has been begun. REQUIRES: not null.
  explicit BlockAllocator(std::unique_ptr<RoutingStore> store);
  ~BlockAllocator();
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // The store that hears of the events. Lives as long as the pool.
  [[nodiscard]] RoutingStore& store() { return *store_; }
  [[nodiscard]] const RoutingStore& store() const { return *store_; }
  // Tokens of one block (StoreOptions::block_tokens, or the page's).
  [[nodiscard]] std::int32_t block_tokens() const { return block_tokens_; }

  // ---- blocks ----

  // Fills `out` with blocks that nobody uses, each with one reference: free ones first (last freed,
  // first taken), then evicted ones. All or none: false, and nothing changes, when there are fewer
  // than out.size(). Emits Bind.
  [[nodiscard]] bool Allocate(std::span<BlockId> out);
  // The leading keys that hit: their number; their blocks are written to `out` and retained (one
  // reference each). Stops at the first miss and at an empty key. Emits Retain.
  // REQUIRES: out.size() >= keys.size().
  [[nodiscard]] std::size_t MatchPrefix(std::span<const BlockKey> keys, std::span<BlockId> out,
                                        Clip clip = Clip::kNo);
  // One reference more of each block, which must be used or cached. A block may be listed twice.
  // Emits Retain.
  [[nodiscard]] absl::Status Retain(std::span<const BlockId> blocks);
  // One reference fewer of each block. What nobody uses any more becomes cached when its key hits,
  // and free otherwise. Give the blocks of a sequence in its order: the last is then the first to
  // be evicted. A block with too few references: FailedPrecondition, and none is released. Emits
  // Release.
  [[nodiscard]] absl::Status Release(std::span<const BlockId> blocks);

  // ---- content ----

  // `block`, which is used, is full (or will be, by `step`), and `key` names its content; `parent`
  // is the key of the block before it, empty for the first. From now on the key hits. The first
  // block with a key is the one that hits, until it is evicted or truncated; then the next one
  // still in use takes its place. Seal parents first: a block whose parent does not hit could not
  // be reached, so its rows are protected, but its key does not hit. An empty key only protects the
  // rows. Sealing again under the same key does nothing. Emits Seal.
  [[nodiscard]] absl::Status Seal(BlockId block, const BlockKey& key, const BlockKey& parent,
                                  StepId step);
  // The KV of rows [0, rows) of `source` (Event::kAllRows: all) is copied to `destination`, which
  // must have one user and no seal; `source` is used or cached. A null source: the rows become
  // never written. Emits Copy. The engine copies the KV itself.
  [[nodiscard]] absl::Status Copy(BlockId source, BlockId destination,
                                  std::int32_t rows = Event::kAllRows);
  // Rows >= `row` of `block` that steps <= `step` wrote are no more (rejected drafts, a rewind).
  // When the block was sealed by such a step, its seal goes, and its key no longer hits (unless
  // another block has it), nor do the keys behind it. News of an earlier life of the block is
  // passed on, for the store to judge, and does nothing here. A block with more than one user is
  // not truncated: copy it first. Emits Truncate.
  [[nodiscard]] absl::Status Truncate(BlockId block, std::int32_t row, StepId step);
  // Empties the prefix index: cached blocks become free, used ones keep their references and rows.
  // Emits Reset when no block is used (it would take the rows of requests in flight). O(all
  // blocks).
  void Reset();

  // ---- the events of the coming step ----

  // In the order of the calls since ClearEvents. Valid until the next call that is not const.
  [[nodiscard]] std::span<const Event> pending_events() const { return events_; }
  // After the store has taken them in BeginStep (StepCode ok or dropped).
  void ClearEvents();

  // ---- what it knows ----

  // The three states. free + cached is what Allocate can give.
  [[nodiscard]] std::int32_t free_blocks() const { return free_count_; }
  [[nodiscard]] std::int32_t cached_blocks() const { return cached_count_; }
  [[nodiscard]] std::int32_t used_blocks() const { return used_count_; }
  // References of `block`; 0 for null blocks and ids out of range.
  [[nodiscard]] std::int32_t references(BlockId block) const;
  // The block that `key` hits; invalid when it misses. Changes nothing.
  [[nodiscard]] BlockId Find(const BlockKey& key) const;
  // Cached blocks that became free to make room.
  [[nodiscard]] std::uint64_t evictions() const { return evictions_; }

 private:
  struct Block;  // one block: references, place in the index, life

  [[nodiscard]] bool IsNull(BlockId block) const;  // REQUIRES: in range
  [[nodiscard]] absl::Status CheckRange(const char* argument, BlockId block) const;
  [[nodiscard]] absl::Status NotInUse(const char* argument, BlockId block) const;
  [[nodiscard]] Block& At(std::int32_t block);
  [[nodiscard]] const Block& At(std::int32_t block) const;
  [[nodiscard]] std::size_t CoveredBlocks(std::span<const BlockId> blocks) const;
  void StartLife(Block& block);
  void AddReference(std::int32_t block);
  // The last reference has gone: cached or free.
  void StopUse(std::int32_t block);
  void MakeFree(std::int32_t block);
  void EvictOne();
  // The block's key no longer hits through it; blocks that only it led to leave the index too.
  void Unregister(std::int32_t block);
  void UnregisterTree(std::int32_t entry);
  void LeaveEntry(std::int32_t block);
  // Puts the block that hits for an entry where its state says: one of the heaps, or neither.
  void Place(std::int32_t entry);

  std::unique_ptr<RoutingStore> store_;
  std::int32_t block_tokens_ = 0;
  std::vector<Block> blocks_;
  std::vector<std::int32_t> free_;  // a stack; null blocks are never on it
  std::unique_ptr<PrefixIndex> index_;
  std::unique_ptr<EvictionHeap> leaves_;  // cached, and nothing cached behind them
  std::unique_ptr<EvictionHeap> inner_;   // cached, with blocks in the index behind them
  std::vector<Event> events_;
  std::int32_t free_count_ = 0;
  std::int32_t cached_count_ = 0;
  std::int32_t used_count_ = 0;
  std::uint64_t clock_ = 0;  // counts references dropped to zero
  std::uint64_t batch_ = 1;  // counts ClearEvents
  std::uint64_t evictions_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_BLOCK_ALLOCATOR_H_
