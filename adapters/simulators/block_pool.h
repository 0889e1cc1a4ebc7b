// BlockPool: the KV block pools of the two simulated engines.
//
// vLLM-like: free blocks are in a queue, the least recently freed first; a freed block keeps its
// hash until it is allocated again. Megatron-like: free blocks are on a LIFO stack; a registered
// block without users stays cached, outside the stack, until it is evicted, the least recently used
// leaf of the prefix tree first. Every call is O(1), but LeastRecentLeaf is O(log blocks).
#ifndef WAYMARK_ADAPTERS_SIMULATORS_BLOCK_POOL_H_
#define WAYMARK_ADAPTERS_SIMULATORS_BLOCK_POOL_H_

#include <cstdint>
#include <queue>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "adapters/simulators/hash.h"

namespace waymark::sim {

// Not thread safe. Registered: the engine's prefix cache finds the block under a hash.
class BlockPool {
 public:
  static constexpr std::uint32_t kNeverReady = 1000000000;

  // One block. The fields that name a function are changed by that function alone.
  struct Block {
    std::int32_t refs = 0;        // number of users (SetRefs)
    bool hashed = false;          // registered (SetHash, ForgetHash)
    bool free = false;            // in the free list (PushFree, PopFree, RemoveFree)
    PrefixHash hash, parent;      // prefix at the end and the start of the block (SetHash)
    std::uint32_t used = 0;       // step of the last use (SetRefs)
    std::uint32_t ready = 0;      // step whose forward fills a registered block
    std::uint32_t sealed_in = 0;  // weights version when it was registered
    std::int32_t next = -1, previous = -1;            // neighbours in the free list; -1: none
    std::int32_t same_next = -1, same_previous = -1;  // other blocks with this hash; -1: none
  };

  // A pool of `blocks` blocks, all free. `lifo`: Megatron-like.
  BlockPool(std::int32_t blocks, bool lifo);

  [[nodiscard]] Block& at(std::int32_t block) { return blocks_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] const Block& at(std::int32_t block) const {
    return blocks_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(blocks_.size()); }
  [[nodiscard]] std::int32_t free_count() const { return free_count_; }
  // The number of registered blocks without users that are not free.
  [[nodiscard]] std::int32_t cached_count() const { return cached_count_; }

  // Removes and returns the next block that the engine would allocate; -1 if none is free.
  std::int32_t PopFree();
  // Adds a block to the free list. REQUIRES: it is not in it.
  void PushFree(std::int32_t block);
  // Removes a block from the free list. REQUIRES: it is in it.
  void RemoveFree(std::int32_t block);
  // Sets the number of users; `now` is the present step.
  void SetRefs(std::int32_t block, std::int32_t refs, std::uint32_t now);

  // The block that a prefix with this hash hits; -1 if there is none.
  [[nodiscard]] std::int32_t Find(const PrefixHash& hash) const;
  // Registers a block. Find returns it unless another block has the hash. REQUIRES: not registered.
  void SetHash(std::int32_t block, const PrefixHash& hash, const PrefixHash& parent);
  // Makes Find return this registered block, if it returns none for the block's hash.
  void Publish(std::int32_t block);
  // Ends the registration of a block; ignored if it is not registered.
  void ForgetHash(std::int32_t block);
  // The least recently used cached block that is no registered block's parent; if all cached blocks
  // are parents, the least recently used of them; -1 if none is cached.
  std::int32_t LeastRecentLeaf();

 private:
  // The blocks of one hash.
  struct Holder {
    std::int32_t block = -1;    // the block that Find returns
    std::int32_t head = -1;     // first of all registered blocks with this hash
    std::int32_t children = 0;  // registered blocks whose parent has this hash
  };
  [[nodiscard]] bool IsCached(const Block& block) const {
    return block.refs == 0 && block.hashed && !block.free;
  }
  // Updates cached_count_ after a change of `block`.
  void Recount(std::int32_t block, bool was_cached);
  // Adds a block to the candidates for eviction, if it is a leaf.
  void Offer(std::int32_t block);

  std::vector<Block> blocks_;
  bool lifo_;
  std::int32_t head_ = -1, tail_ = -1, free_count_ = 0, cached_count_ = 0;
  absl::flat_hash_map<PrefixHash, Holder> by_hash_;
  using Candidate = std::tuple<std::uint32_t, std::int32_t>;  // last use, block
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> leaves_;  // some are stale
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_BLOCK_POOL_H_
