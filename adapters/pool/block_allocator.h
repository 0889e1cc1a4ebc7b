// BlockAllocator: a KV block pool for engines that have none: reference counts, a prefix index, and
// eviction of unreferenced blocks, least recently used leaves first.
//
// It owns a RoutingStore, to which each call reports its events (RoutingStore::Report). The engine
// schedules a step with the calls below and begins it; the batch needs no events.
//
// Example, where `keys` has one BlockKey for each full block of a prompt, and `batch` is its step:
//
//   // The prompt's cached blocks, each with one more reference; then new blocks for the rest.
//   std::vector<BlockId> blocks(keys.size());
//   const std::size_t hits = pool->MatchPrefix(keys, blocks);
//   if (!pool->Allocate(std::span(blocks).subspan(hits))) {
//     return pool->Release(std::span(blocks).first(hits));  // no room: try again in a later step
//   }
//   // The step that is begun next fills them.
//   for (std::size_t i = hits; i < blocks.size(); ++i) {
//     const BlockKey parent = i > 0 ? keys[i - 1] : BlockKey();
//     if (absl::Status s = pool->Seal(blocks[i], keys[i], parent); !s.ok()) return s;
//   }
//   const StepCode code = pool->store().BeginStep(batch);
//
// Every block that is not a null block is in one of three states:
//   used    referenced; never evicted, and not allocated again
//   cached  unreferenced, but its key hits; kept until its memory is needed
//   free    unreferenced, and its key does not hit
//
// The key of a block identifies its tokens and all tokens before it (a prefix chain), so a block
// can hit only if the blocks before it hit. A cached block is therefore evicted after the cached
// blocks that follow it. If all cached blocks are followed by used ones (a sliding window released
// the front of its sequence), the least recently used of them is evicted, and the blocks that
// follow it are removed from the index, because they cannot hit any more.
//
// A key must depend on everything that changes the KV (adapter, salt, ...). After a change of
// weights call Reset(): the index has no versions.
//
// Threads: the engine's thread. No call waits. After warm-up no call allocates, except for error
// messages. A call takes O(blocks given) hash look-ups, and O(log blocks) for each block that
// becomes cached or stops being cached. MatchPrefix with a clip also queries the store.
//
// Errors: a call that returns an error has changed nothing and reported no event.
//   InvalidArgument     a block id, row count, step or key is out of range
//   FailedPrecondition  misuse of a block: released more often than retained, sealed under two
//                       keys, truncated or copied over while it has other users
// Null blocks (negative, or in StoreOptions::null_blocks) are allowed in every list and ignored.
// If the store's log is full, the call takes effect here and its events are lost: the store then
// removes all rows that it has (capacity), so that none is wrong.
#ifndef WAYMARK_ADAPTERS_POOL_BLOCK_ALLOCATOR_H_
#define WAYMARK_ADAPTERS_POOL_BLOCK_ALLOCATOR_H_

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
  // Whether MatchPrefix counts a block whose KV is there but whose routing rows are missing.
  enum class Clip : std::uint8_t {
    kNo,         // yes: every block with KV hits
    kToCovered,  // no: a block hits if all its rows have landed, as far as the log was applied
                 // (CoveredPrefix). For one scheduler alone: ranks may differ
  };

  // A pool of options.num_blocks blocks, without the null blocks, and a new store. Errors as
  // RoutingStore::Create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<BlockAllocator>> Create(
      const StoreOptions& options);
  // Takes ownership of `store`. REQUIRES: not null, and no event was reported to it.
  explicit BlockAllocator(std::unique_ptr<RoutingStore> store);
  ~BlockAllocator();
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // The store to which the events are reported. Lives as long as the allocator. Do not report
  // events of the allocator's blocks to it yourself.
  [[nodiscard]] RoutingStore& store() { return *store_; }
  [[nodiscard]] const RoutingStore& store() const { return *store_; }
  // Tokens per block.
  [[nodiscard]] std::int32_t block_tokens() const { return block_tokens_; }

  // ---- blocks ----

  // Fills `out` with unused blocks, each with one reference: first free ones (last freed, first
  // taken), then evicted ones. If there are fewer than out.size(), returns false and changes
  // nothing. Reports Bind.
  [[nodiscard]] bool Allocate(std::span<BlockId> out);
  // Returns how many leading keys hit. Writes their blocks to `out` and adds one reference to each.
  // Stops at the first key that misses or is empty. Reports Retain.
  // REQUIRES: out.size() >= keys.size().
  [[nodiscard]] std::size_t MatchPrefix(std::span<const BlockKey> keys, std::span<BlockId> out,
                                        Clip clip = Clip::kNo);
  // Adds one reference to each block, which must be used or cached. A block that is listed twice
  // gets two. Reports Retain.
  [[nodiscard]] absl::Status Retain(std::span<const BlockId> blocks);
  // Removes one reference from each block. A block without references becomes cached if its key
  // hits, else free. List the blocks of a sequence in its order, so that the last one is evicted
  // first. FailedPrecondition if a block has too few references; then none is released. Reports
  // Release.
  [[nodiscard]] absl::Status Release(std::span<const BlockId> blocks);

  // ---- content ----

  // Registers the used `block` in the prefix index: `key` hits from now on. `step` fills the block:
  // a step that was begun, or, without a number, the one that is begun next.
  // `parent` is the key of the block before it, empty for the first block. Of several blocks with
  // one key the first that was sealed hits; when it is evicted or truncated, the next one that is
  // still used replaces it. Seal parents first: if the parent does not hit, `key` does not hit, and
  // the seal only protects the block's rows. So does a seal with an empty key. Sealing again under
  // the same key does nothing. Reports Seal.
  [[nodiscard]] absl::Status Seal(BlockId block, const BlockKey& key, const BlockKey& parent,
                                  StepId step = StepId());
  // Reports that the engine copies the KV of rows [0, rows) of `src` (Event::kAllRows: all) to
  // `dst`. `src` must be used or cached; `dst` must have one user and no seal. If `src` is a null
  // block, the rows become never written. Reports Copy.
  [[nodiscard]] absl::Status Copy(BlockId src, BlockId dst, std::int32_t rows = Event::kAllRows);
  // Removes rows >= `row` of `block` that steps <= `step` wrote (rejected drafts, a rewind). If
  // such a step sealed the block, the seal is removed: its key no longer hits (unless another block
  // has it), nor do the keys that follow it. The seal of a step that is not begun yet stays. If
  // `step` is from before the block was allocated, only the event is reported. A block with several
  // users cannot be truncated: copy it first. Reports Truncate.
  [[nodiscard]] absl::Status Truncate(BlockId block, std::int32_t row, StepId step);
  // Empties the prefix index: cached blocks become free, used ones keep their references and rows.
  // Reports Reset if no block is used, because Reset removes all rows. O(num_blocks).
  void Reset();

  // ---- state ----

  // Blocks in each state. Allocate can return free + cached blocks.
  [[nodiscard]] std::int32_t free_blocks() const { return free_count_; }
  [[nodiscard]] std::int32_t cached_blocks() const { return cached_count_; }
  [[nodiscard]] std::int32_t used_blocks() const { return used_count_; }
  // References of `block`; 0 for null blocks and ids out of range.
  [[nodiscard]] std::int32_t references(BlockId block) const;
  // The block that `key` hits; an invalid id if it misses. Changes nothing.
  [[nodiscard]] BlockId Find(const BlockKey& key) const;
  // How many cached blocks were evicted so far.
  [[nodiscard]] std::uint64_t evictions() const { return evictions_; }

 private:
  struct Block;  // one block: references, entry of the index, life

  [[nodiscard]] bool IsNull(BlockId block) const;  // REQUIRES: in range
  [[nodiscard]] absl::Status CheckRange(const char* argument, BlockId block) const;
  [[nodiscard]] absl::Status NotInUse(const char* argument, BlockId block) const;
  [[nodiscard]] Block& At(std::int32_t block);
  [[nodiscard]] const Block& At(std::int32_t block) const;
  [[nodiscard]] std::size_t CoveredBlocks(std::span<const BlockId> blocks) const;
  void StartLife(Block& block);
  // Reports events_ and empties it.
  void Report();
  void AddReference(std::int32_t block);
  // The last reference was removed: the block becomes cached or free.
  void StopUse(std::int32_t block);
  void MakeFree(std::int32_t block);
  void EvictOne();
  // Removes the block from the index, and the blocks that can be reached only through it.
  void Unregister(std::int32_t block);
  void UnregisterTree(std::int32_t entry);
  void LeaveEntry(std::int32_t block);
  // Puts the block that hits for `entry` into the heap of its state, or into none.
  void UpdateHeaps(std::int32_t entry);

  std::unique_ptr<RoutingStore> store_;
  std::int32_t block_tokens_ = 0;
  std::vector<Block> blocks_;
  std::vector<std::int32_t> free_;  // a stack, without null blocks
  std::unique_ptr<PrefixIndex> index_;
  std::unique_ptr<EvictionHeap> leaves_;  // cached, nothing else in the index depends on them
  std::unique_ptr<EvictionHeap> inner_;   // cached, blocks of the index follow them
  std::vector<Event> events_;             // of the call that is running
  std::int32_t free_count_ = 0;
  std::int32_t cached_count_ = 0;
  std::int32_t used_count_ = 0;
  std::uint64_t clock_ = 0;  // how often a block lost its last reference
  std::uint64_t evictions_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_POOL_BLOCK_ALLOCATOR_H_
