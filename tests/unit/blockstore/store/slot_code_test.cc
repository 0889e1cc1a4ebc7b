// SlotCode: every rule with index and value, and all small cases.
#include "blockstore/store/slot_code.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/unit/blockstore/store/slot_code_reference.h"

namespace waymark {
namespace {

using Form = Rows::Form;

constexpr SlotLimits kSmall = {.num_blocks = 2, .block_tokens = 2, .max_step_rows = 16};

Rows Slots(std::vector<std::int64_t> slots) {
  return {.form = Form::kSlots, .slots = std::move(slots)};
}

Rows Pairs(std::vector<std::int64_t> block_idx, std::vector<std::int64_t> local_position,
           std::int32_t index_bytes = 8) {
  return {.form = Form::kPairs,
          .block_idx = std::move(block_idx),
          .local_position = std::move(local_position),
          .index_bytes = index_bytes,
          .block_tokens = 2};
}

// Calls body(digits) with every sequence of `size` digits below `base`.
template <class Body>
void ForEachSequence(std::size_t size, std::size_t base, Body&& body) {
  std::vector<std::size_t> digits(size);
  while (true) {
    body(digits);
    std::size_t i = 0;
    while (i < size && ++digits[i] == base)
      digits[i++] = 0;
    if (i == size || ::testing::Test::HasFatalFailure()) return;
  }
}

// Checks the rule that is broken, and that EncodeSlots names it.
void ExpectRule(const Rows& rows, StepRule rule, std::size_t index, std::int64_t value,
                const SlotLimits& limits = kSmall) {
  const Expected expected = Reference(rows, limits);
  EXPECT_EQ(expected.code.rule, rule);
  EXPECT_EQ(expected.code.index, index);
  EXPECT_EQ(expected.code.value, value);
  CheckRows(rows, limits);
}

TEST(SlotCode, EveryRuleNamesIndexAndValue) {
  ExpectRule(Slots({0, 4, 5}), StepRule::kSlotOutOfRange, 1, 4);
  ExpectRule(Slots({-1, -5, -6, 4}), StepRule::kSlotOutOfRange, 2, -6);
  ExpectRule(Slots({INT64_MIN}), StepRule::kSlotOutOfRange, 0, INT64_MIN);
  ExpectRule(Slots({0, std::int64_t{1} << 32}), StepRule::kSlotOutOfRange, 1,
             std::int64_t{1} << 32);
  ExpectRule(Slots(std::vector<std::int64_t>(17, 99)), StepRule::kTooManyRows, 0, 17);

  ExpectRule(Pairs({0}, {0}, 2), StepRule::kIndexBytes, 0, 2);
  for (const std::int32_t bytes : {-4, -1, 2, 16}) {
    Rows pairs = Pairs({0}, {0});
    pairs.position_bytes = bytes;
    ExpectRule(pairs, StepRule::kIndexBytes, 0, bytes);
  }
  for (const std::int32_t bytes : {4, 8}) {
    Rows pairs = Pairs({1, -1, 1, 2}, {1, -9, 2, 0}, bytes);
    pairs.position_bytes = 12 - bytes;
    ExpectRule(pairs, StepRule::kRowOffset, 2, 2);
  }
  for (const std::int32_t bytes : {4, 8}) {
    ExpectRule(Pairs({1, -1, 2}, {1, 9, 0}, bytes), StepRule::kRowBlock, 2, 2);
    ExpectRule(Pairs({1, -1, 1, 2}, {1, -9, 2, 0}, bytes), StepRule::kRowOffset, 2, 2);
    ExpectRule(Pairs({1, 1}, {0, -1}, bytes), StepRule::kRowOffset, 1, -1);
    ExpectRule(Pairs(std::vector<std::int64_t>(17, 9), std::vector<std::int64_t>(17, 9), bytes),
               StepRule::kTooManyRows, 0, 17);
  }
  for (const std::int32_t tokens : {-2, 0, 3, 4}) {
    Rows pairs = Pairs({0}, {0});
    pairs.block_tokens = tokens;
    ExpectRule(pairs, StepRule::kBlockTokens, 0, tokens);
  }

  Rows thirds = Pairs({0}, {0});
  thirds.block_tokens = 3;
  ExpectRule(thirds, StepRule::kBlockTokens, 0, 3,
             {.num_blocks = 2, .block_tokens = 4, .max_step_rows = 16});
}

TEST(SlotCode, RowsAreInOneForm) {
  const PairRows pairs = {.block_tokens = 2};
  const std::int64_t slot = 0;
  std::uint8_t out[64];
  std::size_t bytes = 0;
  const StepCode code =
      EncodeSlots({.slots = &slot, .num_slots = 1, .pairs = &pairs}, kSmall, out, &bytes);
  EXPECT_EQ(code.rule, StepRule::kRowForms);
  EXPECT_EQ(code.value, 2);
  for (const StepBatch& batch : {StepBatch{}, StepBatch{.pairs = &pairs}}) {
    ASSERT_TRUE(EncodeSlots(batch, kSmall, out, &bytes).ok());
    CheckEncoded({out, bytes}, {}, false);
  }
}

TEST(SlotCode, EverySmallBatchOfSlots) {
  for (std::size_t size = 0; size <= 4; ++size) {
    ForEachSequence(size, 11, [&](const std::vector<std::size_t>& digits) {
      std::vector<std::int64_t> slots;
      for (const std::size_t digit : digits)
        slots.push_back(static_cast<std::int64_t>(digit) - 6);  // -6 and 4 are out of range
      ASSERT_NO_FATAL_FAILURE(CheckRows(Slots(slots), kSmall));
    });
  }
}

TEST(SlotCode, EverySmallBatchOfPairs) {
  for (std::size_t size = 0; size <= 3; ++size) {
    ForEachSequence(2 * size, 4, [&](const std::vector<std::size_t>& digits) {
      std::vector<std::int64_t> blocks;
      std::vector<std::int64_t> offsets;
      for (std::size_t i = 0; i < size; ++i) {
        blocks.push_back(static_cast<std::int64_t>(digits[2 * i]) - 1);
        offsets.push_back(static_cast<std::int64_t>(digits[2 * i + 1]) - 1);
      }
      for (const std::int32_t bytes : {4, 8}) {
        Rows rows = Pairs(blocks, offsets, bytes);
        ASSERT_NO_FATAL_FAILURE(CheckRows(rows, kSmall));
        rows.asked = {0, 0, 1};
        rows.asked.resize(size);
        ASSERT_NO_FATAL_FAILURE(CheckRows(rows, kSmall));
      }
    });
  }
}

// A run that begins, and a row that is out of range, at each place of a batch of many tiles.
TEST(SlotCode, EveryPlaceOfALongBatch) {
  constexpr std::size_t kRows = 600;
  const SlotLimits limits = {.num_blocks = 100, .block_tokens = 16, .max_step_rows = kRows};
  std::vector<std::int64_t> runs[3];
  for (std::size_t i = 0; i < kRows; ++i) {
    runs[0].push_back(static_cast<std::int64_t>(i));
    runs[1].push_back(kPaddingSlot);
    runs[2].push_back(NotAsked(static_cast<std::int64_t>(i)));
  }
  for (const std::vector<std::int64_t>& run : runs) {
    ASSERT_NO_FATAL_FAILURE(CheckRows(Slots(run), limits));
    for (std::size_t at = 0; at < kRows; ++at) {
      for (const std::int64_t slot : {1599, -1, -1601, 1600, -1602}) {
        std::vector<std::int64_t> slots = run;
        slots[at] = slot;
        ASSERT_NO_FATAL_FAILURE(CheckRows(Slots(slots), limits)) << "row " << at;
      }
    }
  }
}

// All lengths about a tile, ascending and not, in all forms.
TEST(SlotCode, EveryLength) {
  const SlotLimits limits = {.num_blocks = 100, .block_tokens = 16, .max_step_rows = 1024};
  for (std::size_t size = 0; size <= 600; ++size) {
    for (const std::int64_t apart : {1, 2, 17}) {
      std::vector<std::int64_t> slots;
      Rows pairs = Pairs({}, {}, size % 2 == 0 ? 4 : 8);
      pairs.block_tokens = 16;
      for (std::size_t i = 0; i < size; ++i) {
        slots.push_back(static_cast<std::int64_t>(i) * apart % 1600);
        pairs.block_idx.push_back(slots[i] / 16);
        pairs.local_position.push_back(slots[i] % 16);
      }
      ASSERT_NO_FATAL_FAILURE(CheckRows(Slots(slots), limits)) << size;
      ASSERT_NO_FATAL_FAILURE(CheckRows(pairs, limits)) << size;
    }
  }
}

// The least store of wide slots, and the greatest of the others.
TEST(SlotCode, WideSlots) {
  for (const std::int32_t num_blocks : {INT32_MAX / 2, INT32_MAX / 2 + 1, INT32_MAX}) {
    const SlotLimits limits = {.num_blocks = num_blocks, .block_tokens = 2, .max_step_rows = 64};
    EXPECT_EQ(limits.wide(), num_blocks > INT32_MAX / 2);
    const std::int64_t last = limits.num_slots() - 1;
    for (const std::int64_t slot : {last, NotAsked(last), last + 1, NotAsked(last) - 1}) {
      CheckRows(Slots({slot, 0, -1, -2}), limits);
      CheckRows(Slots({0, -1, slot, slot, slot - 1, slot}), limits);
      CheckRows(Slots(std::vector<std::int64_t>(64, slot)), limits);
    }
    std::vector<std::int64_t> run(64);
    std::iota(run.begin(), run.end(), last - 63);
    CheckRows(Slots(run), limits);
    for (std::int64_t& slot : run)
      slot = NotAsked(slot);
    CheckRows(Slots(run), limits);
  }
  // A store of one int32: the last code of NotAsked is the least int32.
  const SlotLimits limits = {.num_blocks = INT32_MAX, .block_tokens = 1, .max_step_rows = 64};
  CheckRows(Slots(std::vector<std::int64_t>(40, -1 - std::int64_t{INT32_MAX})), limits);
  CheckRows(Slots(std::vector<std::int64_t>(40, std::int64_t{INT32_MAX} - 1)), limits);
  CheckRows(Slots(std::vector<std::int64_t>(40, INT32_MAX)), limits);
}

}  // namespace
}  // namespace waymark
