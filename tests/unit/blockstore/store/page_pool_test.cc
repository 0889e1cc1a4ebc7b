#include "blockstore/store/page_pool.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "tests/support/test_seed.h"

namespace waymark {
namespace {

TEST(PagePool, TakesEachPageOnceAndTheLastFreedFirst) {
  PagePool pool(3);
  EXPECT_EQ(pool.size(), 3u);
  EXPECT_EQ(pool.Take(), 0u);
  EXPECT_EQ(pool.Take(), 1u);
  EXPECT_EQ(pool.pages_touched(), 2u);
  EXPECT_EQ(pool.Take(), 2u);
  EXPECT_EQ(pool.Take(), kNoPage);

  pool.Free(2);
  pool.Free(0);
  EXPECT_TRUE(pool.hot(0).free);
  EXPECT_EQ(pool.in_use(), 1u);
  EXPECT_EQ(pool.Take(), 0u);
  EXPECT_EQ(pool.Take(), 2u);
  EXPECT_EQ(pool.Take(), kNoPage);
  EXPECT_EQ(pool.in_use(), 3u);
  EXPECT_EQ(pool.in_use_peak(), 3u);
  EXPECT_EQ(pool.pages_touched(), 3u);
}

TEST(PagePool, PrefersFreedPagesToPagesThatWereNeverTaken) {
  PagePool pool(10);
  for (int i = 0; i < 100; ++i)
    pool.Free(pool.Take());
  EXPECT_EQ(pool.pages_touched(), 1u);
  EXPECT_EQ(pool.in_use_peak(), 1u);
}

TEST(PagePool, ClearsTheRecordOfAPageThatIsTakenAgain) {
  PagePool pool(1);
  const PageIndex page = pool.Take();
  pool.hot(page).seal.step = 7;
  pool.hot(page).high_water = 3;
  pool.Free(page);
  ASSERT_EQ(pool.Take(), page);
  EXPECT_EQ(pool.hot(page).seal.step, 0u);
  EXPECT_EQ(pool.hot(page).high_water, 0u);
  EXPECT_FALSE(pool.hot(page).free);
}

TEST(PagePool, EvictsUnsealedPagesThenThoseOfKeysAloneThenSealedOnes) {
  PagePool pool(5);
  for (PageIndex page = 0; page < 5; ++page)
    ASSERT_EQ(pool.Take(), page);
  for (const PageIndex bound : {0u, 1u, 3u, 4u})
    pool.hot(bound).bindings = 1;
  for (const PageIndex sealed : {0u, 2u, 3u})
    pool.hot(sealed).seal.step = 7;
  for (PageIndex page = 0; page < 5; ++page)
    pool.PushLru(page);
  EXPECT_EQ(pool.LruHead(EvictionList::kUnsealed), 1u);
  EXPECT_EQ(pool.LruHead(EvictionList::kKeyOnly), 2u);
  EXPECT_EQ(pool.LruHead(EvictionList::kSealed), 0u);
  // The list of a page is that of the time when it was pushed.
  pool.hot(1).seal.step = 7;
  for (const PageIndex next : {1u, 4u, 2u, 0u, 3u}) {
    EXPECT_EQ(pool.LruHead(), next);
    pool.UnlinkLru(next);
  }
  EXPECT_EQ(pool.LruHead(), kNoPage);
}

TEST(PagePool, SparePagesAreForDetachedOnes) {
  PagePool pool(2, 3);
  EXPECT_EQ(pool.size(), 5u);
  EXPECT_EQ(pool.pages(), 2u);
  EXPECT_EQ(pool.Take(), 0u);
  EXPECT_EQ(pool.Take(), 1u);
  EXPECT_EQ(pool.free(), 3u);
  EXPECT_EQ(pool.Take(), kNoPage);
  for (PageIndex page = 0; page < 3; ++page) {
    pool.SetDetached(page, true);
    pool.SetDetached(page, true);
    EXPECT_EQ(pool.Take(), page + 2);
  }
  EXPECT_EQ(pool.free(), 0u);
  pool.SetDetached(3, true);
  EXPECT_EQ(pool.Take(), kNoPage);
  EXPECT_EQ(pool.detached(), 4u);
  pool.Free(0);
  EXPECT_EQ(pool.detached(), 3u);
  EXPECT_EQ(pool.detached_peak(), 4u);
  EXPECT_EQ(pool.Take(), 0u);
  EXPECT_FALSE(pool.hot(0).detached);
}

TEST(PagePool, PagesThatAreSetAsideAreInAListOfTheirOwn) {
  PagePool pool(3);
  for (PageIndex page = 0; page < 3; ++page) {
    ASSERT_EQ(pool.Take(), page);
    pool.PushLru(page);
  }
  EXPECT_EQ(pool.LruHead(EvictionList::kAside), kNoPage);
  pool.SetAside(1);
  pool.SetAside(0);
  EXPECT_EQ(pool.LruHead(), 2u);
  EXPECT_EQ(pool.LruHead(EvictionList::kAside), 1u);
  pool.UnlinkLru(1);
  EXPECT_EQ(pool.LruHead(EvictionList::kAside), 0u);
  pool.PushLru(1);
  EXPECT_EQ(pool.hot(2).lru_next, 1u);
}

TEST(PagePool, ListsAreInOrderOfPushingWhateverIsUnlinked) {
  TestRandom random;
  constexpr PageIndex kPages = 50;
  PagePool pool(kPages);
  for (PageIndex page = 0; page < kPages; ++page)
    ASSERT_EQ(pool.Take(), page);
  std::deque<PageIndex> expected[3];
  for (int turn = 0; turn < 5000; ++turn) {
    const auto page = static_cast<PageIndex>(random() % kPages);
    PageHot& hot = pool.hot(page);
    if (hot.in_lru) {
      std::deque<PageIndex>& list = expected[static_cast<int>(hot.list)];
      std::erase(list, page);
      pool.UnlinkLru(page);
    } else {
      hot.bindings = static_cast<std::uint16_t>(random() % 2);
      hot.seal.step = random() % 2;
      pool.PushLru(page);
      expected[hot.bindings == 0 ? 1 : hot.seal.set() ? 2 : 0].push_back(page);
    }
    for (int of = 0; of < 3; ++of) {
      std::vector<PageIndex> listed;
      for (PageIndex p = pool.LruHead(static_cast<EvictionList>(of)); p != kNoPage;
           p = pool.hot(p).lru_next)
        listed.push_back(p);
      const std::deque<PageIndex>& list = expected[of];
      ASSERT_EQ(listed, std::vector<PageIndex>(list.begin(), list.end()));
    }
  }
}

}  // namespace
}  // namespace waymark
