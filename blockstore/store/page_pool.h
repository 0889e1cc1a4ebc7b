// PagePool: what is known of each page, which pages are free, and which would go first. Internal to
// blockstore; guarded by the store's lock.
//
// Records only: bytes and stamps of the pages lie in StoreCore, under the same PageIndex. Lists are
// links in the records, so that nothing allocates.
#ifndef WAYMARK_BLOCKSTORE_STORE_PAGE_POOL_H_
#define WAYMARK_BLOCKSTORE_STORE_PAGE_POOL_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "blockstore/digest.h"
#include "blockstore/huge_allocator.h"
#include "blockstore/store/stamp.h"

namespace waymark {

using PageIndex = std::uint32_t;
inline constexpr PageIndex kNoPage = 0xffffffffu;

// The weights of the device steps that claimed rows of a page, in a byte: of none, of several
// versions, else 1 + version mod 254. Two versions may share a byte.
inline constexpr std::uint8_t kNoWeights = 0;
inline constexpr std::uint8_t kSeveralWeights = 255;
inline std::uint8_t DeviceWeights(std::uint64_t version) {
  return static_cast<std::uint8_t>(1 + version % 254);
}

// One page. 32 bytes that claims look at, 40 that seals look at: together with a table entry (48)
// and its share of the key index (7), 127 bytes a page.
struct PageHot {
  RelStep sealed = 0;                     // the step it was sealed with; 0 = not sealed
  std::uint32_t first_binding = kNoPage;  // head of the list of table entries bound to it
  std::uint32_t snapshots = 0;            // live snapshots that hold it
  std::uint32_t pins = 0;                 // claims and copies in flight
  PageIndex lru_prev = kNoPage;
  PageIndex lru_next = kNoPage;              // also links the free list
  std::uint16_t mark = 0;                    // first row that no snapshot sees
  std::uint16_t bindings = 0;                // table entries bound to it
  std::uint16_t referenced = 0;              // of them: those whose block has users
  std::uint8_t device_weights = kNoWeights;  // of the device steps that ever claimed rows of it
  bool indexed : 1 = false;                  // it is in the key index
  bool has_wants : 1 = false;                // it was sealed with a key
  bool in_lru : 1 = false;                   // listed as one that may be evicted
  bool lru_bound : 1 = false;                // in which list: of those that a block is bound to
  bool free : 1 = false;    // on the free list: of the rest only lru_next means anything
  bool copied : 1 = false;  // rows of it came from another page
};
static_assert(sizeof(PageHot) == 32);

// The rest of a page's record, which only seals and the key index look at.
struct PageCold {
  Digest128 wants{};                // its place in the key index, by its seal
  Digest128 indexed_as{};           // the place that it has
  std::uint64_t wants_version = 0;  // weights of the seal
};
static_assert(sizeof(PageCold) == 40);

class PagePool {
 public:
  // `pages` >= 1, < kNoPage. All free.
  explicit PagePool(std::uint32_t pages) : hot_(pages), cold_(pages) {}

  // REQUIRES, of all of these: page < size().
  [[nodiscard]] PageHot& hot(PageIndex page) { return hot_[page]; }
  [[nodiscard]] const PageHot& hot(PageIndex page) const { return hot_[page]; }
  [[nodiscard]] PageCold& cold(PageIndex page) { return cold_[page]; }
  [[nodiscard]] const PageCold& cold(PageIndex page) const { return cold_[page]; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(hot_.size()); }

  // A page that nobody holds, its record as new; kNoPage when all are held.
  [[nodiscard]] PageIndex Take();
  // Back onto the free list, first to be taken again. REQUIRES: taken, held by nobody, and in
  // neither list of pages that may be evicted.
  void Give(PageIndex page);

  // Pages that may be evicted, least recently pushed first; a page pinned since may still be
  // listed. Those that only the key index holds go before those that a block is bound to: the KV of
  // the latter is still there to be hit, so a store with as many pages as blocks keeps its rows.
  void PushLru(PageIndex page);    // REQUIRES: not listed
  void UnlinkLru(PageIndex page);  // REQUIRES: listed
  // The page that would go first; kNoPage when none may.
  [[nodiscard]] PageIndex LruHead() const {
    return lru_[0].head != kNoPage ? lru_[0].head : lru_[1].head;
  }
  // The first of one of the two lists.
  [[nodiscard]] PageIndex LruHead(bool bound) const { return lru_[bound ? 1 : 0].head; }

  // Pages taken and not given back; the most there were at once.
  [[nodiscard]] std::uint32_t in_use() const { return in_use_; }
  [[nodiscard]] std::uint32_t in_use_peak() const { return in_use_peak_; }
  // Pages ever taken: [0, this). The landing thread reads it to commit memory ahead.
  [[nodiscard]] std::uint32_t high_water() const {
    return next_fresh_.load(std::memory_order_relaxed);
  }

 private:
  std::vector<PageHot, HugeAllocator<PageHot>> hot_;
  std::vector<PageCold, HugeAllocator<PageCold>> cold_;
  PageIndex free_head_ = kNoPage;
  struct Lru {
    PageIndex head = kNoPage;
    PageIndex tail = kNoPage;
  } lru_[2];  // [bound]
  std::atomic<std::uint32_t> next_fresh_{0};
  std::uint32_t in_use_ = 0;
  std::uint32_t in_use_peak_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_PAGE_POOL_H_
