#include "blockstore/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

std::vector<std::uint8_t> Bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

BlockKey LongKey() {
  std::array<std::uint8_t, 32> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i + 1);
  return BlockKey::FromBytes(bytes);
}

OwnedStepBatch OneOfEach() {
  OwnedStepBatch batch;
  batch.step = 12;
  batch.version = 3;
  batch.events = {Event::Bind(BlockId(1)),
                  Event::Bind(BlockId(2), BlockKey::FromInteger(0x1122334455667788)),
                  Event::Retain(BlockId(3)),
                  Event::Release(BlockId(4)),
                  Event::Seal(BlockId(5), LongKey(), StepId(11)),
                  Event::Copy(BlockId(6), BlockId(7)),
                  Event::Copy(BlockId(6), BlockId(8), 5),
                  Event::Move(BlockId(9), BlockId(10), true),
                  Event::Move(BlockId(10), BlockId(9)),
                  Event::Truncate(BlockId(11), 3, StepId(10)),
                  Event::Reset()};
  batch.slots = {0, 17, kPaddingSlot, NotAsked(33), std::numeric_limits<std::int64_t>::max()};
  return batch;
}

std::string Serialized(const OwnedStepBatch& batch) {
  std::string out;
  SerializeBatch(batch.view(), out);
  return out;
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

TEST(Batches, ComeBackAsTheyWere) {
  const OwnedStepBatch batch = OneOfEach();
  const std::string text = Serialized(batch);
  EXPECT_EQ(text.size(), SerializedSize(batch.view()));
  std::vector<std::uint8_t> bytes = Bytes(text);
  std::span<const std::uint8_t> rest = bytes;
  const auto parsed = ParseBatch(rest);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, batch);
  EXPECT_TRUE(rest.empty());
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
  OwnedStepBatch as_slots = OneOfEach();
  as_slots.slots = rows.slots;
  StepBatch batch = as_slots.view();
  EXPECT_EQ(Expanded(batch), rows.slots);
  batch.slots = nullptr;
  batch.num_slots = 0;
  for (const PairRows* const pairs :
       {&rows.pairs, &rows.wide_pairs, &rows.wide_blocks, &rows.wide_positions,
        static_cast<const PairRows*>(nullptr)}) {
    batch.pairs = pairs;
    batch.table = pairs == nullptr ? &rows.table : nullptr;
    EXPECT_EQ(Expanded(batch), rows.slots);
    EXPECT_EQ(SerializedSize(batch), SerializedSize(as_slots.view()));
    std::string text;
    SerializeBatch(batch, text);
    EXPECT_EQ(text, Serialized(as_slots));
  }
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

TEST(Batches, FollowEachOther) {
  const OwnedStepBatch batch = OneOfEach();
  OwnedStepBatch empty;
  empty.step = 13;
  std::string text = Serialized(batch);
  SerializeBatch(empty.view(), text);
  text += "tail";
  const std::vector<std::uint8_t> bytes = Bytes(text);
  std::span<const std::uint8_t> rest = bytes;
  EXPECT_EQ(*ParseBatch(rest), batch);
  EXPECT_EQ(*ParseBatch(rest), empty);
  EXPECT_EQ(rest.size(), 4u);
  EXPECT_FALSE(ParseBatch(rest).ok());
  EXPECT_EQ(rest.size(), 4u) << "bytes must not move on failure";
}

TEST(Batches, TheFormatIsPinned) {
  OwnedStepBatch batch;
  batch.step = 0x0102;
  batch.version = 5;
  batch.events = {Event::Seal(BlockId(7), BlockKey::FromInteger(1), StepId(9))};
  batch.slots = {-1};
  const std::vector<std::uint8_t> bytes = Bytes(Serialized(batch));
  ASSERT_EQ(bytes.size(), 36u + 56u + 8u);
  EXPECT_EQ(std::memcmp(bytes.data(), "WMB1", 4), 0);
  EXPECT_EQ(bytes[4], 2);
  EXPECT_EQ(bytes[5], 1);
  EXPECT_EQ(bytes[12], 5);     // version
  EXPECT_EQ(bytes[20], 1);     // events
  EXPECT_EQ(bytes[28], 1);     // slots
  EXPECT_EQ(bytes[36], 4);     // type
  EXPECT_EQ(bytes[38], 8);     // key_size
  EXPECT_EQ(bytes[40], 7);     // block
  EXPECT_EQ(bytes[44], 0xff);  // source: none
  EXPECT_EQ(bytes[52], 9);     // step
  EXPECT_EQ(bytes[60], 1);     // key
  EXPECT_EQ(bytes[92], 0xff);  // slot
}

// A store takes a batch whose meaningless bytes are anything; its recording must still be readable.
TEST(Batches, MeaninglessBytesAreWrittenAsZero) {
  OwnedStepBatch batch;
  batch.step = 1;
  batch.events = {Event::Bind(BlockId(1), BlockKey::FromInteger(5)), Event::Retain(BlockId(1)),
                  Event::Move(BlockId(1), BlockId(2), true)};
  OwnedStepBatch spoilt = batch;
  spoilt.events[0].key[20] = 77;
  spoilt.events[1].more = 1;
  spoilt.events[2].more = 200;
  EXPECT_EQ(Serialized(spoilt), Serialized(batch));
}

TEST(Batches, WhatIsNotWrittenIsNotRead) {
  struct Case {
    std::size_t at;
    std::uint8_t byte;
    std::string message;
  };
  OwnedStepBatch batch;
  batch.step = 1;
  batch.events = {Event::Bind(BlockId(1), BlockKey::FromInteger(5)),
                  Event::Move(BlockId(1), BlockId(2))};
  const std::vector<std::uint8_t> good = Bytes(Serialized(batch));
  const Case cases[] = {{0, 'X', "WMB1"},
                        {36, 9, "events[0].type must be in [1, 8]; it is 9"},
                        {36, 0, "events[0].type"},
                        {38, 33, "events[0].key_size must be at most 32; it is 33"},
                        {39, 1, "events[0].more must be 0 in all but Move; it is 1"},
                        {36 + 56 + 3, 2, "events[1].more must be 0 or 1; it is 2"},
                        {36 + 24 + 31, 1, "events[0].key must be zero beyond its size"},
                        {20, 3, "num_events"},
                        {27, 0xff, "num_events must fit"},
                        {28, 1, "num_slots must fit"},
                        {35, 0x80, "num_slots must fit"}};
  for (const Case& c : cases) {
    std::vector<std::uint8_t> bytes = good;
    bytes[c.at] = c.byte;
    std::span<const std::uint8_t> rest = bytes;
    const auto parsed = ParseBatch(rest);
    ASSERT_FALSE(parsed.ok()) << c.message;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(c.message));
    EXPECT_EQ(rest.size(), bytes.size());
  }
}

// Counts that would overflow when multiplied must not pass the length check: 2^61 slots of 8 bytes.
TEST(Batches, CountsThatOverflowAreRefused) {
  std::vector<std::uint8_t> bytes = Bytes(Serialized(OwnedStepBatch{}));
  for (const std::uint64_t count : {std::uint64_t{1} << 61, (std::uint64_t{1} << 61) + 1,
                                    ~std::uint64_t{0}, ~std::uint64_t{0} / 56 + 1}) {
    for (const std::size_t at : {20, 28}) {
      std::vector<std::uint8_t> spoilt = bytes;
      std::memcpy(spoilt.data() + at, &count, sizeof(count));
      std::span<const std::uint8_t> rest = spoilt;
      EXPECT_FALSE(ParseBatch(rest).ok()) << count;
    }
  }
}

TEST(Batches, EveryTruncationIsRefused) {
  const std::vector<std::uint8_t> good = Bytes(Serialized(OneOfEach()));
  for (std::size_t size = 0; size < good.size(); ++size) {
    const std::vector<std::uint8_t> bytes(good.begin(), good.begin() + static_cast<long>(size));
    std::span<const std::uint8_t> rest = bytes;
    EXPECT_FALSE(ParseBatch(rest).ok()) << size;
    EXPECT_EQ(rest.size(), size);
  }
}

// Either refused, or read as something that is written as the same bytes again.
TEST(Batches, EverySingleByteCorruptionIsSafe) {
  const std::vector<std::uint8_t> good = Bytes(Serialized(OneOfEach()));
  int accepted = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::vector<std::uint8_t> bytes = good;
      bytes[at] = static_cast<std::uint8_t>(byte);
      std::span<const std::uint8_t> rest = bytes;
      const auto parsed = ParseBatch(rest);
      if (!parsed.ok()) continue;
      ++accepted;
      std::string again;
      SerializeBatch(parsed->view(), again);
      bytes.resize(bytes.size() - rest.size());
      ASSERT_EQ(Bytes(again), bytes) << "byte " << at << " = " << byte;
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(Batches, RandomBytesAreSafe) {
  SCOPED_TRACE(::testing::Message() << "WAYMARK_SEED=" << TestSeed());
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::uint8_t> bytes(random() % 300);
    for (std::uint8_t& byte : bytes)
      byte = static_cast<std::uint8_t>(random() % 8 ? 0 : random());
    if (bytes.size() >= 4) std::memcpy(bytes.data(), "WMB1", 4);
    std::span<const std::uint8_t> rest = bytes;
    (void)ParseBatch(rest).ok();
  }
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
