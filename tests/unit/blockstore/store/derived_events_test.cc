#include "blockstore/store/derived_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace waymark {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

std::vector<std::string> Derive(const std::vector<std::int64_t>& slots,
                                std::int32_t block_tokens = 4) {
  DerivedEvents derived(slots, block_tokens);
  std::vector<std::string> out;
  std::vector<Event> piece;
  piece.reserve(DerivedEvents::kPiece);
  while (derived.Next(piece)) {
    for (const Event& event : piece)
      out.push_back(DescribeEvent(event));
  }
  EXPECT_LE(piece.capacity(), DerivedEvents::kPiece);
  return out;
}
std::string Bind(std::int32_t block) {
  return DescribeEvent(Event::Bind(BlockId(block)));
}
std::string Seal(std::int32_t block) {
  return DescribeEvent(Event::Seal(BlockId(block), {}));
}

TEST(DerivedEvents, ADecodeBindsTheBlockWhoseFirstRowItWrites) {
  EXPECT_THAT(Derive({4 * 7, 4 * 3 + 1, 4 * 5}), ElementsAre(Bind(7), Bind(5)));
}

TEST(DerivedEvents, ADecodeSealsTheBlockWhoseLastRowItWrites) {
  EXPECT_THAT(Derive({4 * 7 + 3, 4 * 3 + 2, 4 * 5 + 3}), ElementsAre(Seal(7), Seal(5)));
}

TEST(DerivedEvents, APromptSealsItsBlocksAndBindsNone) {
  // The scheduler's message has bound them, and perhaps retained them for another request.
  EXPECT_THAT(Derive({28, 29, 30, 31, 12, 13}), ElementsAre(Seal(7)));
}

TEST(DerivedEvents, TheLastTokenOfAPromptAloneInItsBlockIsLikeADecode) {
  EXPECT_THAT(Derive({28, 29, 30, 31, 12}), ElementsAre(Seal(7), Bind(3)));
}

TEST(DerivedEvents, RowsOfNeighbouringBlocksAreNotOneRequests) {
  // The last row of block 7 and the first of block 8.
  EXPECT_THAT(Derive({31, 32}), ElementsAre(Seal(7), Bind(8)));
  EXPECT_THAT(Derive({32, 31}), ElementsAre(Bind(8), Seal(7)));
}

TEST(DerivedEvents, PaddingHasNone) {
  EXPECT_THAT(Derive({-1, -1, 3, 4, -1}), ElementsAre(Seal(0), Bind(1)));
  EXPECT_THAT(Derive({0, -1}), ElementsAre(Bind(0)));
}

TEST(DerivedEvents, RowsThatDidNotAskAreLikeOthers) {
  EXPECT_THAT(Derive({NotAsked(28), NotAsked(15), NotAsked(20), NotAsked(21)}),
              ElementsAre(Bind(7), Seal(3)));
}

TEST(DerivedEvents, AnyBlockSize) {
  EXPECT_THAT(Derive({15, 19, 20, 21}, 5), ElementsAre(Bind(3), Seal(3)));
  EXPECT_THAT(Derive({2, 3}, 2), ElementsAre(Seal(1)));
  EXPECT_THAT(Derive({3, 2}, 2), ElementsAre(Seal(1), Bind(1)));
}

TEST(DerivedEvents, BlocksOfOneTokenHaveNone) {
  EXPECT_THAT(Derive({5, 6}, 1), IsEmpty());
}

TEST(DerivedEvents, AnyNumberOfThemInPieces) {
  for (const std::size_t count : {127u, 128u, 129u, 300u}) {
    std::vector<std::int64_t> slots;
    std::vector<std::string> expected;
    for (std::size_t i = 0; i < count; ++i) {
      slots.push_back(static_cast<std::int64_t>(8 * i));
      expected.push_back(Bind(static_cast<std::int32_t>(2 * i)));
    }
    EXPECT_THAT(Derive(slots), ElementsAreArray(expected)) << count;
  }
}

}  // namespace
}  // namespace waymark
