// KeyIndex: from a seal's place (version, key, ordinal) to the page that stands for it. Internal to
// blockstore; guarded by the store's lock.
#ifndef WAYMARK_BLOCKSTORE_KEY_INDEX_H_
#define WAYMARK_BLOCKSTORE_KEY_INDEX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/digest.h"
#include "blockstore/huge_allocator.h"
#include "blockstore/page_pool.h"

namespace waymark {

// Open addressing with linear probing over page numbers; the digests stay with the pages. Its size
// is fixed when it is made (7 slots for 4 pages), so it is never full and never rehashed.
class KeyIndex {
 public:
  explicit KeyIndex(PagePool& pool);

  // The page at this place, or kNoPage.
  [[nodiscard]] PageIndex Find(const Digest128& place) const;
  // REQUIRES: the place is free, and the page has none.
  void Insert(const Digest128& place, PageIndex page);
  // REQUIRES: the page has a place.
  void Erase(PageIndex page);
  // Brings where Find would look into the cache.
  void Prefetch(const Digest128& place) const { __builtin_prefetch(&slots_[Home(place)]); }
  [[nodiscard]] std::uint32_t size() const { return size_; }
  [[nodiscard]] std::span<const PageIndex> slots() const { return slots_; }

 private:
  [[nodiscard]] std::size_t Home(const Digest128& place) const;
  [[nodiscard]] std::size_t Next(std::size_t slot) const {
    return slot + 1 == slots_.size() ? 0 : slot + 1;
  }

  PagePool& pool_;
  std::vector<PageIndex, HugeAllocator<PageIndex>> slots_;
  std::uint32_t size_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_KEY_INDEX_H_
