#include "adapters/simulators/block_pool.h"

namespace waymark::sim {

BlockPool::BlockPool(std::int32_t blocks, bool lifo)
    : blocks_(static_cast<std::size_t>(blocks)), lifo_(lifo) {
  for (std::int32_t block = 0; block < blocks; ++block)
    PushFree(block);
}

std::int32_t BlockPool::PopFree() {
  const std::int32_t block = lifo_ ? tail_ : head_;
  if (block >= 0) RemoveFree(block);
  return block;
}

void BlockPool::PushFree(std::int32_t block) {
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

void BlockPool::RemoveFree(std::int32_t block) {
  Block& b = at(block);
  const bool was_cached = IsCached(b);
  (b.previous >= 0 ? at(b.previous).next : head_) = b.next;
  (b.next >= 0 ? at(b.next).previous : tail_) = b.previous;
  b.free = false;
  --free_count_;
  Recount(block, was_cached);
}

void BlockPool::SetRefs(std::int32_t block, std::int32_t refs, std::uint32_t now) {
  Block& b = at(block);
  const bool was_cached = IsCached(b);
  b.refs = refs;
  b.used = now;
  Recount(block, was_cached);
}

std::int32_t BlockPool::Find(const PrefixHash& hash) const {
  const auto found = by_hash_.find(hash);
  return found == by_hash_.end() ? -1 : found->second.block;
}

void BlockPool::SetHash(std::int32_t block, const PrefixHash& hash, const PrefixHash& parent) {
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

void BlockPool::Publish(std::int32_t block) {
  Holder& holder = by_hash_[at(block).hash];
  if (holder.block < 0) holder.block = block;
}

void BlockPool::ForgetHash(std::int32_t block) {
  Block& b = at(block);
  if (!b.hashed) return;
  const bool was_cached = IsCached(b);
  b.hashed = false;
  const auto own = by_hash_.find(b.hash);
  Holder& holder = own->second;
  if (holder.block == block) holder.block = -1;
  (b.same_previous >= 0 ? at(b.same_previous).same_next : holder.head) = b.same_next;
  if (b.same_next >= 0) at(b.same_next).same_previous = b.same_previous;
  if (holder.head < 0 && holder.children == 0) by_hash_.erase(own);
  const auto up = by_hash_.find(b.parent);
  if (--up->second.children == 0) {
    for (std::int32_t p = up->second.head; p >= 0; p = at(p).same_next) {
      if (IsCached(at(p))) Offer(p);
    }
    if (up->second.head < 0) by_hash_.erase(up);
  }
  Recount(block, was_cached);
}

void BlockPool::Recount(std::int32_t block, bool was_cached) {
  const bool is_cached = IsCached(at(block));
  cached_count_ += static_cast<std::int32_t>(is_cached) - static_cast<std::int32_t>(was_cached);
  if (is_cached) Offer(block);
}

void BlockPool::Offer(std::int32_t block) {
  if (lifo_ && by_hash_.find(at(block).hash)->second.children == 0) {
    leaves_.emplace(at(block).used, block);
  }
}

std::int32_t BlockPool::LeastRecentLeaf() {
  while (!leaves_.empty()) {
    const auto [used, block] = leaves_.top();
    leaves_.pop();
    const Block& b = at(block);
    if (IsCached(b) && b.used == used && by_hash_.find(b.hash)->second.children == 0) return block;
  }
  std::int32_t best = -1;
  for (std::int32_t block = 0; block < size(); ++block) {
    if (IsCached(at(block)) && (best < 0 || at(block).used < at(best).used)) best = block;
  }
  return best;
}

}  // namespace waymark::sim
