// PagePool: the record of each page, the list of free pages, and the lists of pages that may be
// evicted. Internal to blockstore; guarded by the store's lock.
//
// A page that neither a block nor the key index has is *detached*: snapshots hold it. All other
// pages that are taken are at most StoreOptions::num_pages; the spare pages are for the detached
// ones.
//
// The bytes and stamps of a page are in StoreCore, under the same PageIndex. Lists are links in the
// records, so that no call allocates.
#ifndef WAYMARK_BLOCKSTORE_STORE_PAGE_POOL_H_
#define WAYMARK_BLOCKSTORE_STORE_PAGE_POOL_H_

#include <atomic>
#include <cstdint>

#include "blockstore/digest.h"
#include "blockstore/huge_pages.h"
#include "blockstore/store/stamp.h"

namespace waymark {

// A seal: the step with which a block was reported as full, and the digest of its key. A block has
// one, and so has the page that it is bound to. Records keep it in two parts, because writing a row
// reads the first one only.

// The part that rows read. Default: not sealed.
struct SealHot {
  std::uint64_t step : kStepBits = 0;  // the step of the seal; 0 = not sealed
  std::uint64_t has_key : 1 = 0;       // SealCold is set
  std::uint64_t early : 1 = 0;         // of a block: its page is offered when its last row is there

  // Rule 5: whether the seal protects rows. A step's own seals are set after its rows, so every
  // row that meets a seal is of a later step.
  [[nodiscard]] bool set() const { return step != 0; }
  // Whether the block was sealed by `upto` or earlier.
  [[nodiscard]] bool SetBy(std::uint64_t upto) const { return step != 0 && step <= upto; }
};
static_assert(sizeof(SealHot) == 8);

// The part that seals and the key index read. Not read without SealHot::has_key.
struct SealCold {
  Digest128 key{};            // the digest of (version, key, ordinal)
  std::uint64_t version = 0;  // of the weights with which the rows were computed
};
static_assert(sizeof(SealCold) == 24);

// A whole seal. BlockTable::seal and PagePool::seal return one; SetSeal assigns it.
struct Seal {
  SealHot hot;
  SealCold cold;

  // This seal, reported for what already has the seal `earlier`: the first step stays, because rows
  // are protected since then; the key is the new one.
  [[nodiscard]] Seal After(SealHot earlier) const {
    Seal seal = *this;
    if (earlier.step != 0) seal.hot.step = earlier.step;
    return seal;
  }
};

using PageIndex = std::uint32_t;
inline constexpr PageIndex kNoPage = 0xffffffffu;

// The lists of pages that may be evicted, in their order: no request can hit a page that
// is not sealed, and the KV of one that only its key has is gone, unless a tier has it.
enum class EvictionList : std::uint8_t {
  kUnsealed,  // of blocks without users
  kKeyOnly,   // of the key index alone
  kSealed,    // of blocks without users
  kAside,     // cannot be evicted now
};

// The record of a page: 40 bytes that rows read, and 40 that seals read. With a table entry (60)
// and the page's share of the key index (7) it makes 147 bytes a page. A spare page has 80 bytes,
// which are not touched before it is used.
struct PageHot {
  SealHot seal;
  std::uint32_t first_binding = kNoPage;  // head of the list of table entries bound to it
  std::uint32_t snapshots = 0;            // live snapshots that pin it
  std::uint32_t pins = 0;                 // rows that are being written or compared
  PageIndex lru_prev = kNoPage;
  PageIndex lru_next = kNoPage;                     // also links the free list
  std::uint16_t high_water = 0;                     // the first row that no snapshot sees
  std::uint16_t bindings = 0;                       // table entries bound to it
  std::uint16_t referenced = 0;                     // of them: entries whose block has users
  bool indexed : 1 = false;                         // it is in the key index
  bool in_lru : 1 = false;                          // in a list of pages that may be evicted,
  EvictionList list : 2 = EvictionList::kUnsealed;  // which one
  bool detached : 1 = false;                        // neither a block nor the key index has it
  bool free : 1 = false;                            // on the free list: only lru_next is used
};
static_assert(sizeof(PageHot) == 40);

// The rest of a page's record, used by seals and the key index only.
struct PageCold {
  SealCold seal;
  Digest128 index_key{};  // the digest under which it is in the key index
};
static_assert(sizeof(PageCold) == 40);

class PagePool {
 public:
  // `pages` >= 1, and `spare` more, fewer than kNoPage together. All pages are free. The records of
  // spare pages are not touched before they are taken.
  explicit PagePool(std::uint32_t pages, std::uint32_t spare = 0);

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
  // All pages, spare ones included; and the most that are taken and not detached.
  [[nodiscard]] std::uint32_t size() const { return pages_ + spare_; }
  [[nodiscard]] std::uint32_t pages() const { return pages_; }

  // Takes a free page, with a cleared record; kNoPage if none is free, or if pages() of the pages
  // taken are not detached.
  [[nodiscard]] PageIndex Take();
  // Pages that are free, spare ones included.
  [[nodiscard]] std::uint32_t free() const { return size() - in_use_; }
  // Frees a page; it is the next one that Take returns. REQUIRES: taken, not held, and in no list
  // of pages that may be evicted.
  void Free(PageIndex page);

  // Lists of pages that may be evicted, each least recently pushed first. A page that was pinned
  // afterwards may still be listed.
  // The list to which the page belongs, by its seal and its bindings.
  [[nodiscard]] static EvictionList ListFor(const PageHot& hot) {
    if (hot.bindings == 0) return EvictionList::kKeyOnly;
    return hot.seal.set() ? EvictionList::kSealed : EvictionList::kUnsealed;
  }
  void PushLru(PageIndex page);    // to the list to which it belongs. REQUIRES: not listed
  void SetAside(PageIndex page);   // REQUIRES: listed
  void UnlinkLru(PageIndex page);  // REQUIRES: listed
  // The next page to evict; kNoPage if there is none.
  [[nodiscard]] PageIndex LruHead() const {
    for (const Lru& lru : {lru_[0], lru_[1], lru_[2]}) {
      if (lru.head != kNoPage) return lru.head;
    }
    return kNoPage;
  }
  // The first page of one list; kNoPage if it is empty.
  [[nodiscard]] PageIndex LruHead(EvictionList list) const {
    return lru_[static_cast<int>(list)].head;
  }

  // Notes whether a page is detached. REQUIRES: taken.
  void SetDetached(PageIndex page, bool detached);

  // Pages that are taken; their maximum so far.
  [[nodiscard]] std::uint32_t in_use() const { return in_use_; }
  [[nodiscard]] std::uint32_t in_use_peak() const { return in_use_peak_; }
  // How many of them are detached; their maximum so far.
  [[nodiscard]] std::uint32_t detached() const { return detached_; }
  [[nodiscard]] std::uint32_t detached_peak() const { return detached_peak_; }
  // Only pages [0, this) were ever taken. The landing thread reads it to commit memory ahead.
  [[nodiscard]] std::uint32_t pages_touched() const {
    return next_fresh_.load(std::memory_order_relaxed);
  }

 private:
  void Link(PageIndex page);    // at the end of its list
  void Unlink(PageIndex page);  // from its list

  const std::uint32_t pages_;
  const std::uint32_t spare_;
  ReservedArray<PageHot> hot_;
  ReservedArray<PageCold> cold_;
  PageIndex free_head_ = kNoPage;
  struct Lru {
    PageIndex head = kNoPage;
    PageIndex tail = kNoPage;
  } lru_[4];  // [EvictionList]
  std::atomic<std::uint32_t> next_fresh_{0};
  std::uint32_t in_use_ = 0;
  std::uint32_t in_use_peak_ = 0;
  std::uint32_t detached_ = 0;
  std::uint32_t detached_peak_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_PAGE_POOL_H_
