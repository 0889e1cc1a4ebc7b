#include "blockstore/digest.h"

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <vector>

namespace waymark {
namespace {

TEST(IndexKey, DependsOnEachOfItsInputs) {
  const BlockKey key = BlockKey::FromInteger(7);
  const Digest128 digest = IndexKey(1, 2, 3, key);
  EXPECT_EQ(digest, IndexKey(1, 2, 3, key));
  EXPECT_FALSE(digest == IndexKey(9, 2, 3, key));
  EXPECT_FALSE(digest == IndexKey(1, 9, 3, key));
  EXPECT_FALSE(digest == IndexKey(1, 2, 9, key));
  EXPECT_FALSE(digest == IndexKey(1, 2, 3, BlockKey::FromInteger(9)));
}

// A short key and the same key with zeros behind it are two keys.
TEST(IndexKey, DependsOnTheSizeOfTheKey) {
  const std::array<std::uint8_t, 9> bytes = {1, 2, 3, 4, 5, 6, 7, 8, 0};
  EXPECT_FALSE(IndexKey(1, 1, 0, BlockKey::FromBytes(std::span(bytes).first(8))) ==
               IndexKey(1, 1, 0, BlockKey::FromBytes(bytes)));
}

// The numbers are part of what a recording means: they must never change.
TEST(Digests, AreStable) {
  const Digest128 digest = IndexKey(1, 2, 3, BlockKey::FromInteger(7));
  EXPECT_EQ(digest.w[0], 1642252489u);
  EXPECT_EQ(digest.w[3], 1968979207u);
  const std::array<std::uint8_t, 4> row = {1, 2, 3, 4};
  EXPECT_EQ(RowDigest(row), 10992015174800262690u);
}

TEST(RowDigest, TellsRowsApart) {
  std::vector<std::uint8_t> row(464, 3);
  const std::uint64_t digest = RowDigest(row);
  EXPECT_EQ(digest, RowDigest(row));
  row[463] ^= 1;
  EXPECT_NE(digest, RowDigest(row));
  EXPECT_NE(RowDigest(std::span(row).first(0)), 0u);
}

}  // namespace
}  // namespace waymark
