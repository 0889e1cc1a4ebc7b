// Keys name whole prefixes: the same block after another beginning has another key.
#include "adapters/reference/block_keys.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace waymark::reference {
namespace {

std::vector<BlockKey> Keys(const std::vector<int32_t>& tokens) {
  std::vector<BlockKey> keys;
  ExtendBlockKeys(tokens, 4, keys);
  return keys;
}

TEST(BlockKeys, NameFullBlocksOnly) {
  EXPECT_TRUE(Keys({}).empty());
  EXPECT_TRUE(Keys({1, 2, 3}).empty());
  EXPECT_EQ(Keys({1, 2, 3, 4}).size(), 1u);
  EXPECT_EQ(Keys({1, 2, 3, 4, 5, 6, 7}).size(), 1u);
  EXPECT_EQ(Keys({1, 2, 3, 4})[0].size, 16);
}

TEST(BlockKeys, DependOnEverythingBefore) {
  const std::vector<BlockKey> keys = Keys({1, 2, 3, 4, 9, 9, 9, 9});
  const std::vector<BlockKey> other = Keys({1, 2, 3, 5, 9, 9, 9, 9});
  EXPECT_NE(keys[0], other[0]);
  EXPECT_NE(keys[1], other[1]) << "same tokens, another prefix";
  const std::vector<BlockKey> repeated = Keys({7, 7, 7, 7, 7, 7, 7, 7});
  EXPECT_NE(repeated[0], repeated[1]);
}

TEST(BlockKeys, TellTokensAboveAByteApart) {
  EXPECT_NE(Keys({256, 0, 0, 0})[0], Keys({0, 0, 0, 0})[0]);
  EXPECT_NE(Keys({0, 1, 0, 0})[0], Keys({256, 0, 0, 0})[0]);
}

TEST(BlockKeys, GrowWithTheSequence) {
  std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  std::vector<BlockKey> keys = Keys(tokens);
  for (int32_t token = 6; token < 20; ++token) {
    tokens.push_back(token);
    ExtendBlockKeys(tokens, 4, keys);
    EXPECT_EQ(keys, Keys(tokens));
  }
}

}  // namespace
}  // namespace waymark::reference
