#include "blockstore/store/derived_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/describe_event.h"

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

struct DerivedCase {
  const char* rule;
  std::vector<std::int64_t> slots;
  std::vector<std::string> events;
  std::int32_t block_tokens = 4;
};

TEST(DerivedEvents, AreThoseOfTheFirstAndLastRowsOfBlocks) {
  const DerivedCase cases[] = {
      {"a decode binds the block whose first row it writes", {28, 13, 20}, {Bound(7), Bound(5)}},
      {"a decode seals the block whose last row it writes", {31, 14, 23}, {Sealed(7), Sealed(5)}},
      // The scheduler's message has bound them, and perhaps retained them for another request.
      {"a prompt seals its blocks and binds none", {28, 29, 30, 31, 12, 13}, {Sealed(7)}},
      {"the last token of a prompt, alone in its block, is like a decode",
       {28, 29, 30, 31, 12},
       {Sealed(7), Bound(3)}},
      {"rows of neighbouring blocks are not one request's", {31, 32}, {Sealed(7), Bound(8)}},
      {"nor the other way round", {32, 31}, {Bound(8), Sealed(7)}},
      {"padding has none", {-1, -1, 3, 4, -1}, {Sealed(0), Bound(1)}},
      {"nor behind a row", {0, -1}, {Bound(0)}},
      {"rows that did not ask are like others",
       {NotAsked(28), NotAsked(15), NotAsked(20), NotAsked(21)},
       {Bound(7), Sealed(3)}},
      {"blocks of 5", {15, 24, 26, 30, 31}, {Bound(3), Sealed(4)}, 5},
      {"a prompt in blocks of 5", {15, 19, 20, 21}, {Sealed(3)}, 5},
      {"a prompt in blocks of 2", {2, 3}, {Sealed(1)}, 2},
      {"its rows in another order", {3, 2}, {Sealed(1)}, 2},
      {"decodes in blocks of 2", {4, 3}, {Bound(2), Sealed(1)}, 2}};
  for (const DerivedCase& one : cases)
    EXPECT_THAT(Derive(one.slots, one.block_tokens), ElementsAreArray(one.events)) << one.rule;
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
