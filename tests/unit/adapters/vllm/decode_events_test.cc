#include "adapters/vllm/decode_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace waymark {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr BlockId kNull{0};

std::vector<std::string> Derive(const std::vector<std::int64_t>& slots,
                                std::int32_t block_tokens = 4) {
  std::vector<Event> events(slots.size());
  events.resize(DecodeEvents(slots, block_tokens, kNull, events));
  std::vector<std::string> out;
  out.reserve(events.size());
  for (const Event& event : events)
    out.push_back(DescribeEvent(event));
  return out;
}
std::string Bind(std::int32_t block) {
  return DescribeEvent(Event::Bind(BlockId(block)));
}
std::string Seal(std::int32_t block) {
  return DescribeEvent(Event::Seal(BlockId(block), {}));
}

TEST(DecodeEvents, ADecodeBindsTheBlockWhoseFirstRowItWrites) {
  EXPECT_THAT(Derive({4 * 7, 4 * 3 + 1, 4 * 5}), ElementsAre(Bind(7), Bind(5)));
}

TEST(DecodeEvents, ADecodeSealsTheBlockWhoseLastRowItWrites) {
  EXPECT_THAT(Derive({4 * 7 + 3, 4 * 3 + 2, 4 * 5 + 3}), ElementsAre(Seal(7), Seal(5)));
}

TEST(DecodeEvents, APromptSealsItsBlocksAndBindsNone) {
  // The scheduler's message has bound them, and perhaps retained them for another request.
  EXPECT_THAT(Derive({28, 29, 30, 31, 12, 13}), ElementsAre(Seal(7)));
}

TEST(DecodeEvents, TheLastTokenOfAPromptAloneInItsBlockIsLikeADecode) {
  EXPECT_THAT(Derive({28, 29, 30, 31, 12}), ElementsAre(Seal(7), Bind(3)));
}

TEST(DecodeEvents, RowsOfNeighbouringBlocksAreNotOneRequests) {
  // The last row of block 7 and the first of block 8.
  EXPECT_THAT(Derive({31, 32}), ElementsAre(Seal(7), Bind(8)));
  EXPECT_THAT(Derive({32, 31}), ElementsAre(Bind(8), Seal(7)));
}

TEST(DecodeEvents, PaddingAndTheNullBlockHaveNone) {
  EXPECT_THAT(Derive({-1, 0, -1, 3, 4, -1}), ElementsAre(Bind(1)));
}

TEST(DecodeEvents, RowsThatDidNotAskAreLikeOthers) {
  EXPECT_THAT(Derive({NotAsked(28), NotAsked(15), NotAsked(20), NotAsked(21)}),
              ElementsAre(Bind(7), Seal(3)));
}

TEST(DecodeEvents, AnyBlockSize) {
  EXPECT_THAT(Derive({15, 19, 20, 21}, 5), ElementsAre(Bind(3), Seal(3)));
  EXPECT_THAT(Derive({2, 3}, 2), ElementsAre(Seal(1)));
  EXPECT_THAT(Derive({3, 2}, 2), ElementsAre(Seal(1), Bind(1)));
}

TEST(DecodeEvents, BlocksOfOneTokenAreLeftToTheScheduler) {
  EXPECT_THAT(Derive({5, 6}, 1), IsEmpty());
  EXPECT_THAT(Derive({5, 6}, 0), IsEmpty());
}

TEST(DecodeEvents, SlotsOfNoBlockHaveNone) {
  EXPECT_THAT(Derive({std::int64_t{4} << 40, INT64_MAX, INT64_MIN}), IsEmpty());
}

}  // namespace
}  // namespace waymark
