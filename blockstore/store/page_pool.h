// PagePool: the record of each page, the list of free pages, and the lists of pages that may be
// evicted. Internal to blockstore; guarded by the store's lock.
//
// The bytes and stamps of a page are in StoreCore, under the same PageIndex. Lists are links in the
// records, so that no call allocates.
#ifndef WAYMARK_BLOCKSTORE_STORE_PAGE_POOL_H_
#define WAYMARK_BLOCKSTORE_STORE_PAGE_POOL_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "blockstore/digest.h"
#include "blockstore/huge_allocator.h"
#include "blockstore/store/seal.h"

namespace waymark {

using PageIndex = std::uint32_t;
inline constexpr PageIndex kNoPage = 0xffffffffu;

// The version of the device steps that claimed rows of a page, as one byte: none, several, or
// 1 + version mod 254. Two versions may have the same byte.
inline constexpr std::uint8_t kNoWeights = 0;
inline constexpr std::uint8_t kSeveralWeights = 255;
inline std::uint8_t DeviceWeights(std::uint64_t version) {
  return static_cast<std::uint8_t>(1 + version % 254);
}

// The record of a page: 32 bytes that claims read, and 40 that seals read. With a table entry (48)
// and the page's share of the key index (7) it makes 127 bytes per page.
struct PageHot {
  SealHot seal;
  std::uint32_t first_binding = kNoPage;  // head of the list of table entries bound to it
  std::uint32_t snapshots = 0;            // live snapshots that pin it
  std::uint32_t pins = 0;                 // claims and copies in flight that pin it
  PageIndex lru_prev = kNoPage;
  PageIndex lru_next = kNoPage;              // also links the free list
  std::uint16_t high_water = 0;              // the first row that no snapshot sees
  std::uint16_t bindings = 0;                // table entries bound to it
  std::uint16_t referenced = 0;              // of them: entries whose block has users
  std::uint8_t device_weights = kNoWeights;  // of the device steps that claimed its rows
  bool indexed : 1 = false;                  // it is in the key index
  bool in_lru : 1 = false;                   // in a list of pages that may be evicted
  bool lru_bound : 1 = false;                // which list: true = pages with bindings
  bool free : 1 = false;                     // on the free list: only lru_next is used
  bool copied : 1 = false;                   // rows were copied into it from another page
};
static_assert(sizeof(PageHot) == 32);

// The rest of a page's record, used by seals and the key index only.
struct PageCold {
  SealCold seal;
  Digest128 index_key{};  // the digest under which it is in the key index
};
static_assert(sizeof(PageCold) == 40);

class PagePool {
 public:
  // 1 <= pages < kNoPage. All pages are free.
  explicit PagePool(std::uint32_t pages) : hot_(pages), cold_(pages) {}

  // All of these: REQUIRES page < size().
  [[nodiscard]] PageHot& hot(PageIndex page) { return hot_[page]; }
  [[nodiscard]] const PageHot& hot(PageIndex page) const { return hot_[page]; }
  [[nodiscard]] PageCold& cold(PageIndex page) { return cold_[page]; }
  [[nodiscard]] const PageCold& cold(PageIndex page) const { return cold_[page]; }
  // The whole seal of a page.
  [[nodiscard]] Seal seal(PageIndex page) const { return {hot_[page].seal, cold_[page].seal}; }
  void SetSeal(PageIndex page, const Seal& seal) {
    hot_[page].seal = seal.hot;
    cold_[page].seal = seal.cold;
  }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(hot_.size()); }

  // Takes a free page, with a cleared record; kNoPage if none is free.
  [[nodiscard]] PageIndex Take();
  // Frees a page; it is the next one that Take returns. REQUIRES: taken, not held, and in no list
  // of pages that may be evicted.
  void Free(PageIndex page);

  // Two lists of pages that may be evicted, least recently pushed first. A page that was pinned
  // afterwards may still be listed. Pages that only the key index holds are evicted before pages
  // with bindings: the KV of the latter can still be hit, so that a store with as many pages as
  // blocks keeps their rows.
  void PushLru(PageIndex page);    // REQUIRES: not listed
  void UnlinkLru(PageIndex page);  // REQUIRES: listed
  // The next page to evict; kNoPage if there is none.
  [[nodiscard]] PageIndex LruHead() const {
    return lru_[0].head != kNoPage ? lru_[0].head : lru_[1].head;
  }
  // The first page of one list.
  [[nodiscard]] PageIndex LruHead(bool bound) const { return lru_[bound ? 1 : 0].head; }

  // Pages that are taken; their maximum so far.
  [[nodiscard]] std::uint32_t in_use() const { return in_use_; }
  [[nodiscard]] std::uint32_t in_use_peak() const { return in_use_peak_; }
  // Only pages [0, this) were ever taken. The landing thread reads it to commit memory ahead.
  [[nodiscard]] std::uint32_t pages_touched() const {
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
