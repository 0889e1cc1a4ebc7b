#include "blockstore/store/page_claims.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

TEST(PageClaims, FindsWhatWasPutThereAndNothingElse) {
  const std::uint64_t seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "WAYMARK_SEED=" << seed);
  std::mt19937_64 random(seed);
  PageClaims claims;
  claims.Reserve(1000);
  for (int turn = 0; turn < 300; ++turn) {
    const std::size_t pages = 1 + random() % 1000;
    claims.Clear(pages);
    std::map<PageIndex, std::uint32_t> expected;
    // Few numbers, so that pages come again, or many, so that they lie anywhere.
    const PageIndex range = turn % 2 == 0 ? 1500 : kNoPage;
    while (expected.size() < pages) {
      const auto page = static_cast<PageIndex>(random() % range);
      const auto claim = static_cast<std::uint32_t>(random() % 4096);
      PageClaims::List& list = claims.FindOrAdd(page);
      ASSERT_EQ(list.page, page);
      ASSERT_EQ(list.claim, expected.contains(page) ? expected[page] : PageClaims::kNone);
      ASSERT_EQ(list.side, PageClaims::kNone);
      list.claim = claim;
      expected[page] = claim;
      if (random() % 8 == 0) break;
    }
    for (const auto& [page, claim] : expected) {
      ASSERT_NE(claims.Find(page), nullptr);
      ASSERT_EQ(claims.Find(page)->claim, claim);
    }
    for (int i = 0; i < 100; ++i) {
      const auto page = static_cast<PageIndex>(random() % range);
      ASSERT_EQ(claims.Find(page) != nullptr, expected.contains(page));
    }
  }
}

TEST(PageClaims, HasNothingBeforeItIsUsed) {
  PageClaims claims;
  claims.Reserve(0);
  claims.Clear(0);
  EXPECT_EQ(claims.Find(7), nullptr);
}

}  // namespace
}  // namespace waymark
