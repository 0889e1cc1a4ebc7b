#include "blockstore/store/block_table.h"

#include <gtest/gtest.h>

namespace waymark {
namespace {

TEST(BlockTable, EntriesAreNewAtFirst) {
  const BlockTable table(5);
  ASSERT_EQ(table.size(), 5u);
  for (EntryIndex e = 0; e < table.size(); ++e) {
    EXPECT_EQ(table.hot(e).page, kNoPage);
    EXPECT_EQ(table.hot(e).reason, Reason::kNeverWritten);
    EXPECT_FALSE(table.hot(e).exists);
    EXPECT_FALSE(table.hot(e).null);
    EXPECT_EQ(table.hot(e).seal.step, 0u);
    EXPECT_EQ(table.hot(e).refs, 1);
    EXPECT_EQ(table.hot(e).next_binding, kNoEntry);
    EXPECT_EQ(table.cold(e).key, Digest128{});
  }
}

TEST(BlockTable, EntriesDoNotShareTheirFields) {
  BlockTable table(100);
  for (EntryIndex e = 0; e < table.size(); ++e) {
    table.hot(e).page = 7 * e;
    table.hot(e).null = e % 3 == 0;
    table.hot(e).exists = e % 2 == 0;
    table.cold(e).version = e;
    table.Prefetch(e);
  }
  for (EntryIndex e = 0; e < table.size(); ++e) {
    EXPECT_EQ(table.hot(e).page, 7 * e);
    EXPECT_EQ(table.hot(e).null, e % 3 == 0);
    EXPECT_EQ(table.hot(e).exists, e % 2 == 0);
    EXPECT_EQ(table.cold(e).version, e);
  }
}

}  // namespace
}  // namespace waymark
