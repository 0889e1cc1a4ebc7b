// KeyIndex: maps the digest of (version, key, ordinal) to the page that has these rows. Internal to
// blockstore; guarded by the store's lock.
#ifndef WAYMARK_BLOCKSTORE_STORE_KEY_INDEX_H_
#define WAYMARK_BLOCKSTORE_STORE_KEY_INDEX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/digest.h"
#include "blockstore/huge_pages.h"
#include "blockstore/store/page_pool.h"

namespace waymark {

// A hash table of page numbers with linear probing; the digests are in the page records. Its size
// is fixed (7 buckets for 4 pages that can be indexed at once), so it is never full and never
// rehashed.
class KeyIndex {
 public:
  // An empty index for the pages of `pool`, which must outlive it. Only the index sets
  // PageHot::indexed and PageCold::index_key there.
  explicit KeyIndex(PagePool& pool);

  // The page with this digest; kNoPage if there is none. Expected O(1).
  [[nodiscard]] PageIndex Find(const Digest128& index_key) const;
  // REQUIRES: no page has this digest, and the page is not in the index.
  void Insert(const Digest128& index_key, PageIndex page);
  // Removes the page and closes the gap in its run of buckets. REQUIRES: it is in the index.
  void Erase(PageIndex page);
  // Prefetches the bucket where Find begins.
  void Prefetch(const Digest128& index_key) const {
    __builtin_prefetch(&buckets_[Home(index_key)]);
  }
  // All buckets, kNoPage if free, for iteration. Erase moves pages between buckets.
  [[nodiscard]] std::span<const PageIndex> buckets() const { return buckets_; }

 private:
  // The bucket where the search for a digest begins.
  [[nodiscard]] std::size_t Home(const Digest128& index_key) const;
  [[nodiscard]] std::size_t Next(std::size_t bucket) const {
    return bucket + 1 == buckets_.size() ? 0 : bucket + 1;
  }

  PagePool& pool_;
  std::vector<PageIndex, HugeAllocator<PageIndex>> buckets_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_KEY_INDEX_H_
