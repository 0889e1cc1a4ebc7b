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
  DerivedEvents derived(/*num_blocks=*/1000, block_tokens, slots.size());
  derived.Start(slots);
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
std::string Bound(std::int32_t block) {
  return DescribeEvent(Event::Bind(BlockId(block)));
}
std::string Sealed(std::int32_t block) {
  return DescribeEvent(Event::Seal(BlockId(block), {}));
}

TEST(DerivedEvents, ADecodeBindsTheBlockWhoseFirstRowItWrites) {
  EXPECT_THAT(Derive({4 * 7, 4 * 3 + 1, 4 * 5}), ElementsAre(Bound(7), Bound(5)));
}

TEST(DerivedEvents, ADecodeSealsTheBlockWhoseLastRowItWrites) {
  EXPECT_THAT(Derive({4 * 7 + 3, 4 * 3 + 2, 4 * 5 + 3}), ElementsAre(Sealed(7), Sealed(5)));
}

TEST(DerivedEvents, APromptSealsItsBlocksAndBindsNone) {
  // The scheduler's message has bound them, and perhaps retained them for another request.
  EXPECT_THAT(Derive({28, 29, 30, 31, 12, 13}), ElementsAre(Sealed(7)));
}

TEST(DerivedEvents, TheLastTokenOfAPromptAloneInItsBlockIsLikeADecode) {
  EXPECT_THAT(Derive({28, 29, 30, 31, 12}), ElementsAre(Sealed(7), Bound(3)));
}

TEST(DerivedEvents, RowsOfNeighbouringBlocksAreNotOneRequests) {
  // The last row of block 7 and the first of block 8.
  EXPECT_THAT(Derive({31, 32}), ElementsAre(Sealed(7), Bound(8)));
  EXPECT_THAT(Derive({32, 31}), ElementsAre(Bound(8), Sealed(7)));
}

TEST(DerivedEvents, PaddingHasNone) {
  EXPECT_THAT(Derive({-1, -1, 3, 4, -1}), ElementsAre(Sealed(0), Bound(1)));
  EXPECT_THAT(Derive({0, -1}), ElementsAre(Bound(0)));
}

TEST(DerivedEvents, RowsThatDidNotAskAreLikeOthers) {
  EXPECT_THAT(Derive({NotAsked(28), NotAsked(15), NotAsked(20), NotAsked(21)}),
              ElementsAre(Bound(7), Sealed(3)));
}

TEST(DerivedEvents, AnyBlockSize) {
  EXPECT_THAT(Derive({15, 24, 26, 30, 31}, 5), ElementsAre(Bound(3), Sealed(4)));
  EXPECT_THAT(Derive({15, 19, 20, 21}, 5), ElementsAre(Sealed(3)));
  EXPECT_THAT(Derive({2, 3}, 2), ElementsAre(Sealed(1)));
  EXPECT_THAT(Derive({3, 2}, 2), ElementsAre(Sealed(1)));
  EXPECT_THAT(Derive({4, 3}, 2), ElementsAre(Bound(2), Sealed(1)));
}

// Once only the next row of the batch was looked at.
TEST(DerivedEvents, TheRowsOfAPromptMayBeInAnyOrder) {
  for (const std::vector<std::int64_t>& slots : std::vector<std::vector<std::int64_t>>{
           {28, 30, 29}, {29, 28}, {28, 12, 30, 13}, {30, -1, NotAsked(28)}, {NotAsked(30), 28}}) {
    EXPECT_THAT(Derive(slots), IsEmpty()) << ::testing::PrintToString(slots);
  }
  EXPECT_THAT(Derive({31, 28, 4}), ElementsAre(Sealed(7), Bound(1)));
}

TEST(DerivedEvents, ARowThatIsTwiceInTheBatchIsStillAlone) {
  EXPECT_THAT(Derive({28, 12, NotAsked(28)}), ElementsAre(Bound(7), Bound(3)));
}

TEST(DerivedEvents, AStepKnowsNothingOfTheOneBefore) {
  DerivedEvents derived(16, 4, 4);
  std::vector<Event> events;
  for (const bool alone : {true, false, true}) {
    const std::vector<std::int64_t> slots =
        alone ? std::vector<std::int64_t>{4, 20} : std::vector<std::int64_t>{4, 5, 20, 22};
    derived.Start(slots);
    EXPECT_EQ(derived.Next(events), alone);
    EXPECT_EQ(events.size(), alone ? 2u : 0u);
  }
}

TEST(DerivedEvents, AnyNumberOfThemInPieces) {
  for (const std::size_t count : {127u, 128u, 129u, 300u}) {
    std::vector<std::int64_t> slots;
    std::vector<std::string> expected;
    for (std::size_t i = 0; i < count; ++i) {
      slots.push_back(static_cast<std::int64_t>(8 * i));
      expected.push_back(Bound(static_cast<std::int32_t>(2 * i)));
    }
    EXPECT_THAT(Derive(slots), ElementsAreArray(expected)) << count;
  }
}

}  // namespace
}  // namespace waymark
