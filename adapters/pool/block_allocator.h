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
// Every block is in one of three states:
//   used    referenced; never evicted, and not allocated again
//   cached  unreferenced, but its key hits; kept until its memory is needed
//   free    unreferenced, and its key does not hit
//
// The key of a block identifies its tokens and all tokens before it (a prefix chain), and must
// depend on everything else that changes the KV (adapter, salt, ...). A cached block is evicted
// after the cached blocks that follow it. If all cached blocks are followed by used ones, the least
// recently used of them is evicted, and those that follow it hit again when its key does. After a
// change of weights call Reset(): the index has no versions.
//
// Threads: the engine's thread. No call waits. After warm-up no call allocates, except for error
// messages. A call takes O(blocks given) hash look-ups, and O(log blocks) for each block that
// becomes cached or is evicted.
//
// Errors: a call that returns an error has changed nothing and reported no event.
//   InvalidArgument     a block id, row count or key is out of range; Create: there are null blocks
//   FailedPrecondition  misuse of a block: released more often than retained, sealed under two
//                       keys, copied over while it has other users
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

class BlockAllocator {
 public:
  // A pool of options.num_blocks blocks, and a new store. Errors as RoutingStore::Create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<BlockAllocator>> Create(
      const StoreOptions& options);
  ~BlockAllocator();
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // The store to which the events are reported. Lives as long as the allocator. Do not report
  // events of the allocator's blocks to it yourself.
  [[nodiscard]] RoutingStore& store() { return *store_; }
  [[nodiscard]] const RoutingStore& store() const { return *store_; }

  // ---- blocks ----

  // Fills `out` with unused blocks, each with one reference: first free ones (last freed, first
  // taken), then evicted ones. If there are fewer than out.size(), returns false and changes
  // nothing. Reports Bind.
  [[nodiscard]] bool Allocate(std::span<BlockId> out);
  // Returns how many leading keys hit. Writes their blocks to `out` and adds one reference to each.
  // Stops at the first key that misses or is empty. Reports Retain.
  // A block with KV hits whether its routing rows are there or not: store().CoveredPrefix says how
  // many are. REQUIRES: out.size() >= keys.size().
  [[nodiscard]] std::size_t MatchPrefix(std::span<const BlockKey> keys, std::span<BlockId> out);
  // Adds one reference to each block, which must be used or cached. A block that is listed twice
  // gets two. Reports Retain.
  [[nodiscard]] absl::Status Retain(std::span<const BlockId> blocks);
  // Removes one reference from each block. A block without references becomes cached if its key
  // hits, else free. List the blocks of a sequence in its order, so that the last one is evicted
  // first. FailedPrecondition if a block has too few references; then none is released. Reports
  // Release.
  [[nodiscard]] absl::Status Release(std::span<const BlockId> blocks);

  // ---- content ----

  // Registers the used `block` in the prefix index: `key` hits from now on. The step that is begun
  // next fills it. `parent` is the key of the block before it, empty for the first block. Of
  // several blocks with one key the first that was sealed hits; when it is evicted, another one
  // that is still used replaces it. With an empty key the seal only protects the block's rows.
  // Sealing again under the same key does nothing. Reports Seal.
  [[nodiscard]] absl::Status Seal(BlockId block, const BlockKey& key, const BlockKey& parent);
  // Reports that the engine copies the KV of rows [0, rows) of `src` (Event::kAllRows: all) to
  // `dst`. `src` must be used or cached; `dst` must have one user and no seal. Reports Copy.
  [[nodiscard]] absl::Status Copy(BlockId src, BlockId dst, std::int32_t rows = Event::kAllRows);
  // Empties the prefix index: cached blocks become free, used ones keep their references and rows.
  // Reports Reset if no block is used, because Reset removes all rows. O(num_blocks).
  void Reset();

  // ---- state ----

  // Blocks in two of the states. Allocate can return free + cached blocks.
  [[nodiscard]] std::int32_t free_blocks() const;
  [[nodiscard]] std::int32_t cached_blocks() const;
  // How many cached blocks were evicted so far.
  [[nodiscard]] std::uint64_t evictions() const { return evictions_; }

 private:
  struct KeyHash;
  struct Pool;

  explicit BlockAllocator(std::unique_ptr<RoutingStore> store);
  [[nodiscard]] absl::Status CheckRange(const char* argument, BlockId block) const;
  // The block must be used or cached; must be used.
  [[nodiscard]] absl::Status CheckContent(const char* argument, BlockId block) const;
  [[nodiscard]] absl::Status CheckUsed(const char* argument, BlockId block) const;
  void AddReferences(std::span<const BlockId> blocks);
  // Reports events_ and empties it.
  void Report();

  std::unique_ptr<RoutingStore> store_;
  std::int32_t block_tokens_;
  std::unique_ptr<Pool> pool_;
  std::vector<Event> events_;  // of the call that is running
  std::uint64_t clock_ = 0;    // how often a reference was removed
  std::uint64_t evictions_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_POOL_BLOCK_ALLOCATOR_H_
