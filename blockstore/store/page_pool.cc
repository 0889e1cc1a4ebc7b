#include "blockstore/store/page_pool.h"

#include <algorithm>

namespace waymark {

PagePool::PagePool(std::uint32_t pages, std::uint32_t spare)
    : pages_(pages),
      spare_(spare),
      hot_(std::size_t{pages} + spare),
      cold_(std::size_t{pages} + spare) {
  hot_.Grow(pages);
  cold_.Grow(pages);
}

PageIndex PagePool::Take() {
  if (in_use_ - detached_ >= pages_) return kNoPage;
  PageIndex page = free_head_;
  if (page != kNoPage) {
    free_head_ = hot_[page].lru_next;
  } else if (pages_touched() < size()) {
    page = pages_touched();
    hot_.Grow(std::size_t{page} + 1);
    cold_.Grow(std::size_t{page} + 1);
    next_fresh_.store(page + 1, std::memory_order_relaxed);
  } else {
    return kNoPage;
  }
  hot_[page] = PageHot{};
  in_use_peak_ = std::max(in_use_peak_, ++in_use_);
  return page;
}

void PagePool::Free(PageIndex page) {
  SetDetached(page, false);
  hot_[page].free = true;
  hot_[page].lru_next = free_head_;  // last freed, first taken: likely to be in the cache
  free_head_ = page;
  --in_use_;
}

void PagePool::SetDetached(PageIndex page, bool detached) {
  PageHot& hot = hot_[page];
  if (hot.detached == detached) return;
  hot.detached = detached;
  if (detached) {
    ++detached_;
  } else {
    --detached_;
  }
  detached_peak_ = std::max(detached_peak_, detached_);
}

void PagePool::PushLru(PageIndex page) {
  PageHot& hot = hot_[page];
  hot.in_lru = true;
  hot.list = ListFor(hot);
  Link(page);
}

void PagePool::SetAside(PageIndex page) {
  Unlink(page);
  hot_[page].list = EvictionList::kAside;
  Link(page);
}

void PagePool::UnlinkLru(PageIndex page) {
  Unlink(page);
  hot_[page].in_lru = false;
}

void PagePool::Link(PageIndex page) {
  PageHot& hot = hot_[page];
  Lru& lru = lru_[static_cast<int>(hot.list)];
  hot.lru_prev = lru.tail;
  hot.lru_next = kNoPage;
  (lru.tail == kNoPage ? lru.head : hot_[lru.tail].lru_next) = page;
  lru.tail = page;
}

void PagePool::Unlink(PageIndex page) {
  const PageHot& hot = hot_[page];
  Lru& lru = lru_[static_cast<int>(hot.list)];
  (hot.lru_prev == kNoPage ? lru.head : hot_[hot.lru_prev].lru_next) = hot.lru_next;
  (hot.lru_next == kNoPage ? lru.tail : hot_[hot.lru_next].lru_prev) = hot.lru_prev;
}

}  // namespace waymark
