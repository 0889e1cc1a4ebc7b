// BlockPool: the KV blocks of an engine: users, free list, prefix index, and which cached block is
// evicted first. It decides nothing and reports nothing: the embedded engine and the simulated ones
// are built on it, each with rules of its own.
//
// A queue: the least recently freed block is taken first, and keeps its key until then (like vLLM).
// A stack: the last freed block is taken first; a registered block without users stays cached,
// outside the stack, until it is evicted, the least recently used leaf of the prefix tree first
// (like Megatron). Every call is O(1), but LeastRecentLeaf is O(log blocks), O(blocks) where a
// block in use follows every cached block.
#ifndef WAYMARK_ADAPTERS_POOL_BLOCK_POOL_H_
#define WAYMARK_ADAPTERS_POOL_BLOCK_POOL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "adapters/pool/prefix_hash.h"

namespace waymark {

// Not thread safe. Nothing allocates after construction. Registered: the prefix cache finds the
// block under a key, which stands for its tokens and all tokens before it.
class BlockPool {
 public:
  static constexpr std::uint32_t kNeverReady = 1000000000;

  // One block. The fields that name a function are changed by that function alone.
  struct Block {
    std::int32_t refs = 0;        // number of users (SetRefs)
    bool hashed = false;          // registered (SetHash, ForgetHash)
    bool free = false;            // in the free list (PushFree, PopFree, RemoveFree)
    PrefixHash hash, parent;      // of the prefix at the end and the start of the block (SetHash)
    std::uint64_t used = 0;       // time of the last use (SetRefs)
    std::uint32_t ready = 0;      // the simulators': step whose forward fills a registered block
    std::uint32_t sealed_in = 0;  // the simulators': weights version when it was registered
    std::int32_t next = -1, previous = -1;            // neighbours in the free list; -1: none
    std::int32_t same_next = -1, same_previous = -1;  // other blocks with this key; -1: none
  };
  enum class Freed : std::uint8_t { kQueue, kStack };

  // A pool of `blocks` blocks, all free: of a queue block 0 is the first, of a stack the last.
  BlockPool(std::int32_t blocks, Freed freed)
      : blocks_(static_cast<std::size_t>(blocks)), lifo_(freed == Freed::kStack) {
    by_hash_.reserve(4 * blocks_.size());
    leaves_.reserve(lifo_ ? 2 * blocks_.size() + 64 : 0);
    for (std::int32_t block = 0; block < blocks; ++block)
      PushFree(block);
  }

  [[nodiscard]] Block& at(std::int32_t block) { return blocks_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] const Block& at(std::int32_t block) const {
    return blocks_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(blocks_.size()); }
  [[nodiscard]] std::int32_t free_count() const { return free_count_; }
  // The number of registered blocks without users that are not free.
  [[nodiscard]] std::int32_t cached_count() const { return cached_count_; }

  // Removes and returns the next block that the engine would allocate; -1 if none is free.
  std::int32_t PopFree() {
    const std::int32_t block = lifo_ ? tail_ : head_;
    if (block >= 0) RemoveFree(block);
    return block;
  }
  // Adds a block to the free list. REQUIRES: it is not in it.
  void PushFree(std::int32_t block) {
    Block& b = at(block);
    const bool was_cached = IsCached(b);
    b.free = true;
    b.next = -1;
    b.previous = tail_;
    (tail_ >= 0 ? at(tail_).next : head_) = block;
    tail_ = block;
    ++free_count_;
    Recount(block, was_cached);
  }
  // Removes a block from the free list. REQUIRES: it is in it.
  void RemoveFree(std::int32_t block) {
    Block& b = at(block);
    const bool was_cached = IsCached(b);
    (b.previous >= 0 ? at(b.previous).next : head_) = b.next;
    (b.next >= 0 ? at(b.next).previous : tail_) = b.previous;
    b.free = false;
    --free_count_;
    Recount(block, was_cached);
  }
  // Sets the number of users; `now` is the present time, by any clock.
  void SetRefs(std::int32_t block, std::int32_t refs, std::uint64_t now) {
    Block& b = at(block);
    const bool was_cached = IsCached(b);
    b.refs = refs;
    b.used = now;
    Recount(block, was_cached);
  }

  // The block that a prefix with this key hits; -1 if there is none.
  [[nodiscard]] std::int32_t Find(const PrefixHash& hash) const {
    const auto found = by_hash_.find(hash);
    return found == by_hash_.end() ? -1 : found->second.block;
  }
  // Registers a block. Find returns it unless another block has the key. REQUIRES: not registered.
  void SetHash(std::int32_t block, const PrefixHash& hash, const PrefixHash& parent) {
    Block& b = at(block);
    const bool was_cached = IsCached(b);
    b.hashed = true;
    b.hash = hash;
    b.parent = parent;
    ++by_hash_[parent].children;
    Holder& holder = by_hash_[hash];
    if (holder.block < 0) holder.block = block;
    b.same_previous = -1;
    b.same_next = holder.head;
    if (holder.head >= 0) at(holder.head).same_previous = block;
    holder.head = block;
    Recount(block, was_cached);
  }
  // Makes Find return this registered block, if it returns none for the block's key.
  void Publish(std::int32_t block) {
    Holder& holder = by_hash_[at(block).hash];
    if (holder.block < 0) holder.block = block;
  }
  // Ends the registration of a block; ignored if it is not registered. Returns another block that
  // is registered with its key, which Find does not return before it is published; -1: none.
  std::int32_t ForgetHash(std::int32_t block) {
    Block& b = at(block);
    if (!b.hashed) return -1;
    const bool was_cached = IsCached(b);
    b.hashed = false;
    const auto own = by_hash_.find(b.hash);
    Holder& holder = own->second;
    if (holder.block == block) holder.block = -1;
    (b.same_previous >= 0 ? at(b.same_previous).same_next : holder.head) = b.same_next;
    if (b.same_next >= 0) at(b.same_next).same_previous = b.same_previous;
    const std::int32_t twin = holder.head;
    if (holder.head < 0 && holder.children == 0) by_hash_.erase(own);
    const auto up = by_hash_.find(b.parent);
    if (--up->second.children == 0) {
      for (std::int32_t p = up->second.head; p >= 0; p = at(p).same_next) {
        if (IsCached(at(p))) Offer(p);
      }
      if (up->second.head < 0) by_hash_.erase(up);
    }
    Recount(block, was_cached);
    return twin;
  }
  // The least recently used cached block that is no registered block's parent; if all cached blocks
  // are parents, the least recently used of them; -1 if none is cached.
  std::int32_t LeastRecentLeaf() {
    while (!leaves_.empty()) {
      std::pop_heap(leaves_.begin(), leaves_.end(), std::greater<>());
      const Candidate oldest = leaves_.back();
      leaves_.pop_back();
      if (IsLeaf(oldest)) return oldest.second;
    }
    std::int32_t best = -1;
    for (std::int32_t block = 0; block < size(); ++block) {
      if (IsCached(at(block)) && (best < 0 || at(block).used < at(best).used)) best = block;
    }
    return best;
  }

 private:
  // The blocks of one key.
  struct Holder {
    std::int32_t block = -1;    // the block that Find returns
    std::int32_t head = -1;     // first of all registered blocks with this key
    std::int32_t children = 0;  // registered blocks whose parent has this key
  };
  using Candidate = std::pair<std::uint64_t, std::int32_t>;  // last use, block

  [[nodiscard]] bool IsCached(const Block& block) const {
    return block.refs == 0 && block.hashed && !block.free;
  }
  [[nodiscard]] bool IsLeaf(const Candidate& candidate) const {
    const Block& b = at(candidate.second);
    return IsCached(b) && b.used == candidate.first && by_hash_.find(b.hash)->second.children == 0;
  }
  // Updates cached_count_ after a change of `block`.
  void Recount(std::int32_t block, bool was_cached) {
    const bool is_cached = IsCached(at(block));
    cached_count_ += static_cast<std::int32_t>(is_cached) - static_cast<std::int32_t>(was_cached);
    if (is_cached) Offer(block);
  }
  // Adds a block to the candidates for eviction, if it is a leaf.
  void Offer(std::int32_t block) {
    if (!lifo_ || by_hash_.find(at(block).hash)->second.children != 0) return;
    if (leaves_.size() == leaves_.capacity()) {  // only half of them can be leaves
      std::sort(leaves_.begin(), leaves_.end());
      leaves_.erase(std::unique(leaves_.begin(), leaves_.end()), leaves_.end());
      std::erase_if(leaves_, [this](const Candidate& candidate) { return !IsLeaf(candidate); });
    }
    leaves_.emplace_back(at(block).used, block);
    std::push_heap(leaves_.begin(), leaves_.end(), std::greater<>());
  }

  std::vector<Block> blocks_;
  bool lifo_;
  std::int32_t head_ = -1, tail_ = -1, free_count_ = 0, cached_count_ = 0;
  absl::flat_hash_map<PrefixHash, Holder> by_hash_;
  std::vector<Candidate> leaves_;  // a heap, the least recently used first; some are stale
};

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_POOL_BLOCK_POOL_H_
