#include "blockstore/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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

// The same six rows as slots, as pairs and as a table.
struct SixRows {
  std::int32_t block_idx[6] = {7, 7, -3, 2, 2, -1};
  std::int32_t local_position[6] = {2, 3, 0, 0, 1, 0};
  std::int64_t wide_block_idx[6] = {7, 7, -3, 2, 2, -1};
  std::int64_t wide_local_position[6] = {2, 3, 0, 0, 1, 0};
  std::uint8_t row_asked[6] = {1, 1, 1, 0, 0, 1};
  std::int32_t block_table[6] = {9, 7, -3, 2, 9, 9};
  std::int32_t computed[2] = {6, 0};
  std::int32_t scheduled[2] = {3, 2};
  std::uint8_t request_asked[2] = {1, 0};
  std::vector<std::int64_t> slots = {30, 31, kPaddingSlot, NotAsked(8), NotAsked(9), kPaddingSlot};

  PairRows pairs = {block_idx, local_position, row_asked, 6, 4, 4};
  PairRows wide_pairs = {wide_block_idx, wide_local_position, row_asked, 6, 8, 4};
  PairRows wide_blocks = {wide_block_idx, local_position, row_asked, 6, 8, 4, 4};
  PairRows wide_positions = {block_idx, wide_local_position, row_asked, 6, 4, 4, 8};
  TableRows table = {block_table, 3, 2, computed, scheduled, request_asked, 1, 4};
};

std::vector<std::int64_t> Expanded(const StepBatch& batch) {
  std::vector<std::int64_t> slots(NumRows(batch), 12345);
  ExpandSlots(batch, slots.data());
  return slots;
}

TEST(Batches, AllFormsOfRowsAreWrittenAsSlots) {
  const SixRows rows;
  EXPECT_EQ(Expanded({.slots = rows.slots.data(), .num_slots = rows.slots.size()}), rows.slots);
  for (const PairRows* const pairs :
       {&rows.pairs, &rows.wide_pairs, &rows.wide_blocks, &rows.wide_positions})
    EXPECT_EQ(Expanded({.pairs = pairs}), rows.slots);
  EXPECT_EQ(Expanded({.table = &rows.table}), rows.slots);
}

TEST(Batches, RowsWithoutASlotGetOneThatNoStoreAccepts) {
  SixRows rows;
  rows.local_position[0] = 4;
  rows.local_position[1] = -1;
  rows.local_position[2] = -1;  // of padding: not looked at
  rows.block_idx[3] = INT32_MAX;
  std::vector<std::int64_t> slots = rows.slots;
  slots[0] = slots[1] = kNoSlot;
  slots[3] = NotAsked(std::int64_t{INT32_MAX} * 4);
  EXPECT_EQ(Expanded({.pairs = &rows.pairs}), slots);
  rows.wide_block_idx[4] = INT64_MAX / 4;
  EXPECT_EQ(Expanded({.pairs = &rows.wide_pairs})[4], kNoSlot);
  rows.wide_block_idx[4] = INT64_MAX / 4 - 1;
  EXPECT_EQ(Expanded({.pairs = &rows.wide_pairs})[4], NotAsked((INT64_MAX / 4 - 1) * 4 + 1));
  rows.wide_blocks.position_bytes = 16;
  EXPECT_EQ(Expanded({.pairs = &rows.wide_blocks}), std::vector<std::int64_t>(6, kNoSlot));
  rows.pairs.index_bytes = 2;
  EXPECT_EQ(Expanded({.pairs = &rows.pairs}), std::vector<std::int64_t>(6, kNoSlot));

  rows.computed[0] = 11;  // two positions behind the table
  EXPECT_EQ(Expanded({.table = &rows.table}),
            (std::vector<std::int64_t>{kPaddingSlot, kNoSlot, kNoSlot, NotAsked(8), NotAsked(9),
                                       kPaddingSlot}));
  rows.computed[0] = -2;
  rows.scheduled[1] = -5;  // counts as none
  EXPECT_EQ(Expanded({.table = &rows.table}),
            (std::vector<std::int64_t>{kNoSlot, kNoSlot, 36, kPaddingSlot}));
  rows.table.block_tokens = 0;
  EXPECT_EQ(Expanded({.table = &rows.table}),
            (std::vector<std::int64_t>{kNoSlot, kNoSlot, kNoSlot, kPaddingSlot}));
}

TEST(AppendSlots, FollowsTheBlocksToTheirEnd) {
  const std::vector<BlockId> blocks = {BlockId(7), BlockId(2), BlockId(5)};
  std::vector<std::int64_t> slots = {99};
  AppendSlots(blocks, 4, 3, 6, true, slots);
  EXPECT_EQ(slots, (std::vector<std::int64_t>{99, 31, 8, 9}));
  slots.clear();
  AppendSlots(blocks, 4, 10, 20, false, slots);
  EXPECT_EQ(slots, (std::vector<std::int64_t>{NotAsked(22), NotAsked(23)}));
  AppendSlots(blocks, 4, 20, 22, true, slots);
  AppendSlots({}, 4, 0, 2, true, slots);
  EXPECT_EQ(slots.size(), 2u);
}

}  // namespace
}  // namespace waymark
