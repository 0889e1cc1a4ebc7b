#include "blockstore/store/page_pool.h"

namespace waymark {

PageIndex PagePool::Take() {
  PageIndex page = free_head_;
  if (page != kNoPage) {
    free_head_ = hot_[page].lru_next;
  } else if (pages_touched() < size()) {
    page = pages_touched();
    next_fresh_.store(page + 1, std::memory_order_relaxed);
  } else {
    return kNoPage;
  }
  hot_[page] = PageHot{};
  if (++in_use_ > in_use_peak_) in_use_peak_ = in_use_;
  return page;
}

void PagePool::Free(PageIndex page) {
  hot_[page].free = true;
  hot_[page].lru_next = free_head_;  // last freed, first taken: likely to be in the cache
  free_head_ = page;
  --in_use_;
}

void PagePool::PushLru(PageIndex page) {
  PageHot& hot = hot_[page];
  hot.in_lru = true;
  hot.lru_bound = hot.bindings > 0;
  Lru& lru = lru_[hot.lru_bound ? 1 : 0];
  hot.lru_prev = lru.tail;
  hot.lru_next = kNoPage;
  (lru.tail == kNoPage ? lru.head : hot_[lru.tail].lru_next) = page;
  lru.tail = page;
}

void PagePool::UnlinkLru(PageIndex page) {
  PageHot& hot = hot_[page];
  Lru& lru = lru_[hot.lru_bound ? 1 : 0];
  hot.in_lru = false;
  (hot.lru_prev == kNoPage ? lru.head : hot_[hot.lru_prev].lru_next) = hot.lru_next;
  (hot.lru_next == kNoPage ? lru.tail : hot_[hot.lru_next].lru_prev) = hot.lru_prev;
}

}  // namespace waymark
