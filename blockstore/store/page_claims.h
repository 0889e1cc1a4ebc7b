// PageClaims: maps a page to the claims that one step has on it. Internal to blockstore;
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

  struct List {
    PageIndex page = kNoPage;
    // The first of StepRecord::claims on this page; the others follow it. Of a step with slots of
    // the host, the first one of the last run of them (StepRecord::next_run).
    std::uint32_t claim = kNone;
    // The last of StepRecord::copies on this page; SideRow::next links the others.
    std::uint32_t side = kNone;
  };

  // Allocates memory for Clear(pages) or less, unless there is some.
  void Reserve(std::size_t pages) { lists_.resize(std::max(lists_.size(), SizeFor(pages))); }
  // Removes all pages; there is then room for `pages`.
  void Clear(std::size_t pages) {
    size_ = SizeFor(pages);
    std::fill_n(lists_.begin(), size_, List());
  }
  // The claims on the page; null if there are none. Expected O(1).
  [[nodiscard]] const List* Find(PageIndex page) const {
    const std::size_t at = Probe(page);
    return lists_[at].page == page ? &lists_[at] : nullptr;
  }
  // The same; added if there are none. Valid until Clear.
  List& FindOrAdd(PageIndex page) {
    List& list = lists_[Probe(page)];
    list.page = page;
    return list;
  }

 private:
  // The number of buckets for `pages`, of which at most two thirds are then taken.
  static std::size_t SizeFor(std::size_t pages) { return pages + pages / 2 + 1; }
  // The bucket of the page, or the free one for it.
  [[nodiscard]] std::size_t Probe(PageIndex page) const {
    const std::uint32_t hash = page * 0x9e3779b1u;
    std::size_t at = (std::uint64_t{hash} * size_) >> 32;
    while (lists_[at].page != page && lists_[at].page != kNoPage)
      at = at + 1 == size_ ? 0 : at + 1;
    return at;
  }

  std::vector<List> lists_;
  std::size_t size_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_PAGE_CLAIMS_H_
