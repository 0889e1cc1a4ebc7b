#include "adapters/pool/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace waymark {
namespace {

using ::testing::ElementsAre;

constexpr std::int32_t kNone = PrefixIndex::kNone;

BlockKey Key(std::uint64_t number) {
  return BlockKey::FromInteger(number);
}

std::vector<std::int32_t> Children(const PrefixIndex& index, std::int32_t entry) {
  std::vector<std::int32_t> children;
  for (std::int32_t at = index.entry(entry).child; at != kNone; at = index.entry(at).next_sibling) {
    EXPECT_EQ(index.entry(at).parent, entry);
    children.push_back(at);
  }
  return children;
}

TEST(PrefixIndex, FindsWhatWasInsertedUntilItIsRemoved) {
  PrefixIndex index(3);
  EXPECT_EQ(index.Find(Key(1)), kNone);
  const std::int32_t one = index.Insert(Key(1), kNone);
  const std::int32_t two = index.Insert(Key(2), one);
  const std::int32_t three = index.Insert(Key(3), one);
  EXPECT_EQ(index.Find(Key(1)), one);
  EXPECT_EQ(index.Find(Key(3)), three);
  EXPECT_THAT(Children(index, one), ElementsAre(three, two));
  index.Remove(two);
  EXPECT_EQ(index.Find(Key(2)), kNone);
  EXPECT_THAT(Children(index, one), ElementsAre(three));
  const std::int32_t four = index.Insert(Key(4), three);  // the capacity is used again
  EXPECT_THAT(Children(index, three), ElementsAre(four));
  index.Remove(four);
  index.Remove(three);
  EXPECT_THAT(Children(index, one), ElementsAre());
  EXPECT_EQ(index.Find(Key(1)), one);
}

TEST(PrefixIndex, SiblingsLeaveInAnyOrder) {
  for (int first = 0; first < 3; ++first) {
    for (int second = 0; second < 3; ++second) {
      if (first == second) continue;
      PrefixIndex index(4);
      const std::int32_t root = index.Insert(Key(9), kNone);
      std::int32_t children[3];
      for (std::uint64_t i = 0; i < 3; ++i)
        children[i] = index.Insert(Key(i), root);
      index.Remove(children[first]);
      index.Remove(children[second]);
      EXPECT_THAT(Children(index, root), ElementsAre(children[3 - first - second]));
    }
  }
}

// Far more keys than buckets of one chain: keys that share a bucket must not hide each other.
TEST(PrefixIndex, HoldsItsWholeCapacity) {
  constexpr std::uint64_t kKeys = 5000;
  PrefixIndex index(kKeys);
  for (std::uint64_t i = 0; i < kKeys; ++i)
    index.Insert(Key(i << 32), kNone);
  for (std::uint64_t i = 0; i < kKeys; i += 2)
    index.Remove(index.Find(Key(i << 32)));
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const std::int32_t entry = index.Find(Key(i << 32));
    ASSERT_EQ(entry != kNone, i % 2 == 1) << i;
    if (entry != kNone) {
      ASSERT_EQ(index.entry(entry).key, Key(i << 32));
    }
  }
  index.Clear();
  EXPECT_EQ(index.Find(Key(std::uint64_t{1} << 32)), kNone);
  for (std::uint64_t i = 0; i < kKeys; ++i)
    index.Insert(Key(i), kNone);
  EXPECT_NE(index.Find(Key(kKeys - 1)), kNone);
}

}  // namespace
}  // namespace waymark
