// KeyIndex: from a seal's place (version, key, ordinal) to the page that stands for it. Internal to
// blockstore; guarded by the store's lock.
#ifndef WAYMARK_BLOCKSTORE_STORE_KEY_INDEX_H_
#define WAYMARK_BLOCKSTORE_STORE_KEY_INDEX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/digest.h"
#include "blockstore/huge_allocator.h"
#include "blockstore/store/page_pool.h"

namespace waymark {

// Open addressing with linear probing over page numbers; the digests stay with the pages. Its size
// is fixed when it is made (7 slots for 4 pages), so it is never full and never rehashed.
class KeyIndex {
 public:
  // Empty, for all pages of `pool`, which outlives it: the index reads and sets PageHot::indexed
  // and PageCold::indexed_as there, and nothing else does.
  explicit KeyIndex(PagePool& pool);

  // The page at this place, or kNoPage. Expected O(1).
  [[nodiscard]] PageIndex Find(const Digest128& place) const;
  // REQUIRES: the place is free, and the page has none.
  void Insert(const Digest128& place, PageIndex page);
  // Gives the page's place up, and closes the gap in its run of slots. REQUIRES: the page has one.
  void Erase(PageIndex page);
  // Brings where Find would look into the cache.
  void Prefetch(const Digest128& place) const { __builtin_prefetch(&slots_[Home(place)]); }
  // Pages that have a place.
  [[nodiscard]] std::uint32_t size() const { return size_; }
  // Every slot, kNoPage where it is free: for going through all of them. Erase moves others.
  [[nodiscard]] std::span<const PageIndex> slots() const { return slots_; }

 private:
  // Where the search for a place begins.
  [[nodiscard]] std::size_t Home(const Digest128& place) const;
  [[nodiscard]] std::size_t Next(std::size_t slot) const {
    return slot + 1 == slots_.size() ? 0 : slot + 1;
  }

  PagePool& pool_;
  std::vector<PageIndex, HugeAllocator<PageIndex>> slots_;
  std::uint32_t size_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_KEY_INDEX_H_
