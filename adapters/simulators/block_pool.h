// BlockPool: the KV block pools of the imitated engines.
//
// vLLM-like: a queue of free blocks, the least recently freed first; a freed block keeps its hash
// until it is taken again. Megatron-like: a LIFO bag of free blocks; a registered block without
// users is cached outside the bag until it is peeled, least recently used leaf first. Everything is
// O(1) but the peel, which is O(log blocks).
#ifndef WAYMARK_ADAPTERS_SIMULATORS_BLOCK_POOL_H_
#define WAYMARK_ADAPTERS_SIMULATORS_BLOCK_POOL_H_

#include <cstdint>
#include <queue>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "adapters/simulators/hash.h"

namespace waymark::sim {

class BlockPool {
 public:
  static constexpr std::uint32_t kNeverReady = 1000000000;

  // One block. Changed through the pool only where a comment says so.
  struct Block {
    std::int32_t refs = 0;                  // SetRefs
    bool hashed = false;                    // SetHash, ForgetHash
    bool free = false;                      // PushFree, PopFree, RemoveFree
    PrefixHash hash, parent;                // SetHash
    std::uint32_t used = 0;                 // SetRefs: step of the last use
    std::uint32_t ready = 0;                // step whose forward completes a registered block
    std::uint32_t sealed_in = 0;            // version in which it was registered
    std::int32_t next = -1, previous = -1;  // free list
    std::int32_t same_next = -1, same_previous = -1;  // blocks of one hash
  };

  BlockPool(std::int32_t blocks, bool lifo);

  [[nodiscard]] Block& at(std::int32_t block) { return blocks_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] const Block& at(std::int32_t block) const {
    return blocks_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(blocks_.size()); }
  [[nodiscard]] std::int32_t free_count() const { return free_count_; }
  // Registered blocks without users that are not free.
  [[nodiscard]] std::int32_t cached_count() const { return cached_count_; }

  // The next block that the engine would hand out; -1 when none is free.
  std::int32_t PopFree();
  void PushFree(std::int32_t block);
  void RemoveFree(std::int32_t block);
  void SetRefs(std::int32_t block, std::int32_t refs, std::uint32_t now);

  // The block registered first under `hash`; -1 when there is none.
  [[nodiscard]] std::int32_t Find(const PrefixHash& hash) const;
  // Registers an unregistered block.
  void SetHash(std::int32_t block, const PrefixHash& hash, const PrefixHash& parent);
  // Lets a registered block be found again, after the one found under its hash was forgotten.
  void Publish(std::int32_t block);
  // No-op for an unregistered block.
  void ForgetHash(std::int32_t block);
  // The least recently used cached block that is nobody's parent; any cached block when all are
  // parents; -1 when none is cached.
  std::int32_t LeastRecentLeaf();

 private:
  struct Holder {
    std::int32_t block = -1;    // found under the hash
    std::int32_t head = -1;     // all blocks of the hash
    std::int32_t children = 0;  // registered blocks whose parent this is
  };
  [[nodiscard]] bool IsCached(const Block& block) const {
    return block.refs == 0 && block.hashed && !block.free;
  }
  void Recount(std::int32_t block, bool was_cached);
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
