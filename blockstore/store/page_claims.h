// PageClaims: maps a page to the claims that one device step has on it. Internal to blockstore;
// guarded by the store's lock.
#ifndef WAYMARK_BLOCKSTORE_STORE_PAGE_CLAIMS_H_
#define WAYMARK_BLOCKSTORE_STORE_PAGE_CLAIMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockstore/store/page_pool.h"

namespace waymark {

// A hash table with linear probing. Memory is allocated once; a step uses a part of it that is
// proportional to its rows, so that Clear costs no more than claiming them.
class PageClaims {
 public:
  static constexpr std::uint32_t kNone = ~0u;

  struct Place {
    PageIndex page = kNoPage;
    // The first of StepRecord::claims on this page; the others follow it.
    std::uint32_t claim = kNone;
    // The last of StepRecord::copies on this page; SideRow::next links the others.
    std::uint32_t side = kNone;
  };

  // Allocates memory for Clear(pages) or less.
  void Reserve(std::size_t pages) { places_.resize(SizeFor(pages)); }
  // Removes all pages; there is then room for `pages`.
  void Clear(std::size_t pages) {
    size_ = SizeFor(pages);
    std::fill_n(places_.begin(), size_, Place());
  }
  // The claims on the page; null if there are none. Expected O(1).
  [[nodiscard]] const Place* Find(PageIndex page) const {
    const std::size_t at = Probe(page);
    return places_[at].page == page ? &places_[at] : nullptr;
  }
  // The same; added if there are none. Valid until Clear.
  Place& Of(PageIndex page) {
    Place& place = places_[Probe(page)];
    place.page = page;
    return place;
  }

 private:
  // The number of buckets for `pages`, of which at most two thirds are then taken.
  static std::size_t SizeFor(std::size_t pages) { return pages + pages / 2 + 1; }
  // The bucket of the page, or the free one for it.
  [[nodiscard]] std::size_t Probe(PageIndex page) const {
    const std::uint32_t hash = page * 0x9e3779b1u;
    std::size_t at = (std::uint64_t{hash} * size_) >> 32;
    while (places_[at].page != page && places_[at].page != kNoPage)
      at = at + 1 == size_ ? 0 : at + 1;
    return at;
  }

  std::vector<Place> places_;
  std::size_t size_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_PAGE_CLAIMS_H_
