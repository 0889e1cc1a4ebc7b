// EvictionHeap: a priority queue of blocks, oldest last use first, from which any block can be
// removed. Internal to the block allocator.
//
// A binary heap of block numbers that stores the position of each block, so that a block that is
// used again is removed in O(log size). Two arrays of fixed size, 20 bytes per block; nothing
// allocates after construction.
#ifndef WAYMARK_ADAPTERS_POOL_EVICTION_HEAP_H_
#define WAYMARK_ADAPTERS_POOL_EVICTION_HEAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace waymark {

// One thread at a time.
class EvictionHeap {
 public:
  // An empty heap for blocks in [0, num_blocks), num_blocks < 2^31.
  explicit EvictionHeap(std::size_t num_blocks) : positions_(num_blocks, kAbsent) {
    heap_.reserve(num_blocks);
  }

  [[nodiscard]] bool empty() const { return heap_.empty(); }
  // All members: REQUIRES block in [0, num_blocks).
  [[nodiscard]] bool Contains(std::int32_t block) const {
    return positions_[static_cast<std::size_t>(block)] != kAbsent;
  }
  // The block with the smallest last use; any one if several have it. It stays in the heap.
  // REQUIRES: not empty.
  [[nodiscard]] std::int32_t oldest() const { return heap_.front().block; }

  // `last_use`: from any clock; smaller is older. Does nothing if the block is in the heap; to
  // change its last use, erase it first. O(log size).
  void Insert(std::int32_t block, std::uint64_t last_use) {
    if (Contains(block)) return;
    heap_.push_back({last_use, block});
    SiftUp(heap_.size() - 1);
  }
  // Does nothing if the block is not in the heap. O(log size).
  void Erase(std::int32_t block) {
    if (!Contains(block)) return;
    const std::size_t hole = positions_[static_cast<std::size_t>(block)];
    positions_[static_cast<std::size_t>(block)] = kAbsent;
    const Item last = heap_.back();
    heap_.pop_back();
    if (hole == heap_.size()) return;
    Put(hole, last);
    if (hole > 0 && last.last_use < heap_[(hole - 1) / 2].last_use) {
      SiftUp(hole);
    } else {
      SiftDown(hole);
    }
  }
  // Removes all blocks. O(size).
  void Clear() {
    for (const Item& item : heap_)
      positions_[static_cast<std::size_t>(item.block)] = kAbsent;
    heap_.clear();
  }

 private:
  static constexpr std::uint32_t kAbsent = 0xffffffffu;
  struct Item {
    std::uint64_t last_use;
    std::int32_t block;
  };

  // All items are written here, so that `heap_` and `positions_` agree.
  void Put(std::size_t at, const Item& item) {
    heap_[at] = item;
    positions_[static_cast<std::size_t>(item.block)] = static_cast<std::uint32_t>(at);
  }
  // Moves the item at `at` towards the front, past younger ones. O(log size).
  void SiftUp(std::size_t at) {
    const Item item = heap_[at];
    while (at > 0) {
      const std::size_t up = (at - 1) / 2;
      if (heap_[up].last_use <= item.last_use) break;
      Put(at, heap_[up]);
      at = up;
    }
    Put(at, item);
  }
  // Moves the item at `at` towards the back, past older ones. O(log size).
  void SiftDown(std::size_t at) {
    const Item item = heap_[at];
    for (;;) {
      std::size_t down = 2 * at + 1;
      if (down >= heap_.size()) break;
      if (down + 1 < heap_.size() && heap_[down + 1].last_use < heap_[down].last_use) ++down;
      if (item.last_use <= heap_[down].last_use) break;
      Put(at, heap_[down]);
      at = down;
    }
    Put(at, item);
  }

  std::vector<Item> heap_;                // children of i at 2 i + 1 and 2 i + 2, none older
  std::vector<std::uint32_t> positions_;  // [block]: its position in heap_, or kAbsent
};

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_POOL_EVICTION_HEAP_H_
