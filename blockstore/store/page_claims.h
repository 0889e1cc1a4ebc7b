// PageClaims: from a page to the claims that one device step has on it. Internal to blockstore;
// guarded by the store's lock.
#ifndef WAYMARK_BLOCKSTORE_STORE_PAGE_CLAIMS_H_
#define WAYMARK_BLOCKSTORE_STORE_PAGE_CLAIMS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockstore/store/page_pool.h"

namespace waymark {

// Open addressing with linear probing. Its memory is taken once; a step uses as much of it as it
// has rows, so that emptying it costs no more than claiming them.
class PageClaims {
 public:
  static constexpr std::uint32_t kNone = ~0u;

  struct Place {
    PageIndex page = kNoPage;
    // The first of StepRecord::claims on this page: the others follow it.
    std::uint32_t claim = kNone;
    // The last of StepRecord::copies on this page: SideRow::next leads to the others.
    std::uint32_t side = kNone;
  };

  // Takes memory for Clear of at most so many pages.
  void Reserve(std::size_t pages) { places_.resize(SizeFor(pages)); }
  // Forgets everything; has room for so many pages from now on.
  void Clear(std::size_t pages) {
    size_ = SizeFor(pages);
    std::fill_n(places_.begin(), size_, Place());
  }
  // The place of the page; null when the step has no claim on it. Expected O(1).
  [[nodiscard]] const Place* Find(PageIndex page) const {
    const std::size_t at = Probe(page);
    return places_[at].page == page ? &places_[at] : nullptr;
  }
  // The same, made where there is none. Stays where it is until Clear.
  Place& Of(PageIndex page) {
    Place& place = places_[Probe(page)];
    place.page = page;
    return place;
  }

 private:
  // Never full, and at most two thirds of it are used.
  static std::size_t SizeFor(std::size_t pages) { return pages + pages / 2 + 1; }
  // Where the page is, or would be.
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
