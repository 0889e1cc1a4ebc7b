#include "blockstore/store/key_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/support/test_seed.h"

namespace waymark {
namespace {

// A digest whose search begins at a bucket that depends on `home` only: 0 is the first bucket,
// 2^32 - 1 the last one.
Digest128 DigestAt(std::uint32_t home, std::uint32_t rest) {
  return {{home, rest, 0, 0}};
}

TEST(KeyIndex, IsEmptyAtFirst) {
  PagePool pool(4);
  const KeyIndex index(pool);
  EXPECT_EQ(index.Find(DigestAt(0, 0)), kNoPage);
  EXPECT_EQ(index.Find(DigestAt(0xffffffffu, 1)), kNoPage);
  for (const PageIndex page : index.buckets())
    EXPECT_EQ(page, kNoPage);
}

TEST(KeyIndex, MarksThePagesThatItHolds) {
  PagePool pool(4);
  KeyIndex index(pool);
  index.Insert(DigestAt(5, 6), 2);
  EXPECT_TRUE(pool.hot(2).indexed);
  EXPECT_EQ(pool.cold(2).index_key, DigestAt(5, 6));
  EXPECT_FALSE(pool.hot(1).indexed);
  EXPECT_EQ(index.Find(DigestAt(5, 6)), 2u);
  EXPECT_EQ(index.Find(DigestAt(5, 7)), kNoPage);
  index.Erase(2);
  EXPECT_FALSE(pool.hot(2).indexed);
  EXPECT_EQ(index.Find(DigestAt(5, 6)), kNoPage);
}

// All digests begin at the last bucket, so that the run goes on at the first one.
TEST(KeyIndex, ARunWithoutTheErasedPageIsStillFound) {
  constexpr PageIndex kPages = 8;
  for (PageIndex erased = 0; erased < kPages; ++erased) {
    PagePool pool(kPages);
    KeyIndex index(pool);
    for (PageIndex page = 0; page < kPages; ++page)
      index.Insert(DigestAt(0xffffffffu, page), page);
    index.Erase(erased);
    for (PageIndex page = 0; page < kPages; ++page) {
      EXPECT_EQ(index.Find(DigestAt(0xffffffffu, page)), page == erased ? kNoPage : page);
    }
  }
}

TEST(KeyIndex, FindsWhatIsInItAndNothingElse) {
  TestRandom random;
  constexpr PageIndex kPages = 200;
  // Digests from anywhere, and from few buckets, which makes long runs.
  for (const std::uint32_t homes : {0xffffffffu, 5u, 1u}) {
    PagePool pool(kPages);
    KeyIndex index(pool);
    std::map<PageIndex, Digest128> expected;
    for (int turn = 0; turn < 4000; ++turn) {
      const auto page = static_cast<PageIndex>(random() % kPages);
      if (expected.contains(page)) {
        const Digest128 old = expected[page];
        index.Erase(page);
        expected.erase(page);
        ASSERT_EQ(index.Find(old), kNoPage);
      } else {
        const auto home = static_cast<std::uint32_t>(random() % homes) * (0xffffffffu / homes);
        expected[page] = DigestAt(home, static_cast<std::uint32_t>(turn));
        index.Insert(expected[page], page);
      }
      for (const auto& [held, digest] : expected)
        ASSERT_EQ(index.Find(digest), held);
    }
    std::vector<PageIndex> listed(index.buckets().begin(), index.buckets().end());
    std::erase(listed, kNoPage);
    std::sort(listed.begin(), listed.end());
    std::vector<PageIndex> held;
    for (const auto& [page, digest] : expected)
      held.push_back(page);
    EXPECT_EQ(listed, held);
  }
}

}  // namespace
}  // namespace waymark
