#include "blockstore/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/describe_event.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

BlockKey LongKey() {
  std::array<std::uint8_t, 32> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i + 1);
  return BlockKey::FromBytes(bytes);
}

TEST(BlockKey, KeepsTheFirst32Bytes) {
  std::vector<std::uint8_t> bytes(40, 9);
  EXPECT_EQ(BlockKey::FromBytes(bytes).size, 32);
  EXPECT_TRUE(BlockKey::FromBytes({}).empty());
  const BlockKey key = BlockKey::FromInteger(0x0102030405060708);
  EXPECT_EQ(key.size, 8);
  EXPECT_EQ(key.bytes[0], 8);
  EXPECT_EQ(key.bytes[7], 1);
}

TEST(Events, FactoriesFillTheFieldsTheyName) {
  const Event seal = Event::Seal(BlockId(5), LongKey(), StepId(11));
  EXPECT_EQ(seal.type, EventType::kSeal);
  EXPECT_EQ(seal.block, 5);
  EXPECT_EQ(seal.step, 11u);
  EXPECT_EQ(seal.GetKey(), LongKey());
  const Event copy = Event::Copy(BlockId(6), BlockId(7), 5);
  EXPECT_EQ(copy.src, 6);
  EXPECT_EQ(copy.block, 7);
  EXPECT_EQ(copy.rows, 5);
  EXPECT_TRUE(Event::Bind(BlockId(1)).GetKey().empty());
  EXPECT_EQ(Event::Move(BlockId(1), BlockId(2), true).more, 1);
}

TEST(Events, AKeyTooLongIsReadWithinItsBytes) {
  Event event = Event::Bind(BlockId(1), LongKey());
  event.key_size = 255;
  EXPECT_EQ(event.GetKey().size, 32);
  EXPECT_THAT(DescribeEvent(event), HasSubstr("0102"));
}

TEST(Events, DescriptionsNameWhatCounts) {
  EXPECT_EQ(DescribeEvent(Event::Seal(BlockId(7), BlockKey::FromInteger(0xab), StepId(12))),
            "Seal(block 7, key ab00000000000000, step 12)");
  EXPECT_EQ(DescribeEvent(Event::Copy(BlockId(6), BlockId(8))), "Copy(block 6 -> 8, all rows)");
  EXPECT_EQ(DescribeEvent(Event::Truncate(BlockId(1), 3, StepId(9))),
            "Truncate(block 1, from row 3, step 9)");
  EXPECT_EQ(DescribeEvent(Event::Reset()), "Reset");
  Event unknown;
  unknown.type = static_cast<EventType>(77);
  EXPECT_EQ(DescribeEvent(unknown), "unknown event 77");
}

TEST(Slots, NotAskedIsItsOwnInverse) {
  for (const std::int64_t slot : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 40}) {
    EXPECT_LE(NotAsked(slot), -2);
    EXPECT_EQ(NotAsked(NotAsked(slot)), slot);
  }
}

}  // namespace
}  // namespace waymark
