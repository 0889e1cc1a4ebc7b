// SlotCode: every rule with index and value, and all small cases.
#include "blockstore/store/slot_code.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

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

Rows Table(std::vector<std::int32_t> block_table, std::size_t stride,
           std::vector<std::int32_t> num_computed_tokens,
           std::vector<std::int32_t> num_scheduled_tokens, std::size_t num_padding = 0) {
  return {.form = Form::kTable,
          .block_table = std::move(block_table),
          .stride = stride,
          .num_computed_tokens = std::move(num_computed_tokens),
          .num_scheduled_tokens = std::move(num_scheduled_tokens),
          .num_padding = num_padding,
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
    Rows table = Table({0}, 1, {0}, {1});
    table.block_tokens = tokens;
    ExpectRule(table, StepRule::kBlockTokens, 0, tokens);
  }

  Rows thirds = Pairs({0}, {0});
  thirds.block_tokens = 3;
  ExpectRule(thirds, StepRule::kBlockTokens, 0, 3,
             {.num_blocks = 2, .block_tokens = 4, .max_step_rows = 16});

  ExpectRule(Table({0, 1}, 1, {0, 0}, {1, -3}), StepRule::kScheduledTokens, 1, -3);
  ExpectRule(Table({0, 1}, 1, {0, -4}, {1, 1}), StepRule::kPosition, 1, -4);
  ExpectRule(Table({0, 1}, 1, {0, 1}, {1, 2}), StepRule::kPosition, 1, 2);
  ExpectRule(Table({0, 1}, 1, {0, INT32_MAX}, {1, INT32_MAX}), StepRule::kPosition, 1,
             std::int64_t{INT32_MAX} * 2 - 1);
  ExpectRule(Table({0}, 1, {0}, {2}, 15), StepRule::kTooManyRows, 0, 17);
  ExpectRule(Table({0, 2}, 2, {1}, {3}), StepRule::kRowBlock, 1, 2);
}

TEST(SlotCode, RowsAreInOneForm) {
  const PairRows pairs = {.block_tokens = 2};
  const TableRows table = {.block_tokens = 2};
  const std::int64_t slot = 0;
  std::uint8_t out[64];
  std::size_t bytes = 0;
  const auto value = [&](const StepBatch& batch) {
    const StepCode code = EncodeSlots(batch, kSmall, out, &bytes);
    EXPECT_EQ(code.rule, StepRule::kRowForms);
    return code.value;
  };
  EXPECT_EQ(value({.slots = &slot, .num_slots = 1, .pairs = &pairs}), 2);
  EXPECT_EQ(value({.slots = &slot, .num_slots = 1, .table = &table}), 2);
  EXPECT_EQ(value({.pairs = &pairs, .table = &table}), 2);
  EXPECT_EQ(value({.slots = &slot, .num_slots = 1, .pairs = &pairs, .table = &table}), 3);
  for (const StepBatch& batch :
       {StepBatch{}, StepBatch{.pairs = &pairs}, StepBatch{.table = &table}}) {
    ASSERT_TRUE(EncodeSlots(batch, kSmall, out, &bytes).ok());
    CheckEncoded({out, bytes}, {}, false);
  }
}

// A request without rows is ignored, whatever its position and its blocks are; so are entries that
// no row needs.
TEST(SlotCode, IgnoresWhatNoRowNeeds) {
  CheckRows(Table({9, 9, 1, 9}, 2, {-7, 1}, {0, 1}), kSmall);
  CheckRows(Table({9, 9, 1, 9}, 2, {INT32_MAX, 0}, {0, 2}), kSmall);
  ASSERT_TRUE(Reference(Table({9, 9, 1, 9}, 2, {-7, 1}, {0, 1}), kSmall).code.ok());
}

// Positions end below 2^31 - 1, however long the table is.
TEST(SlotCode, PositionsAreInt32) {
  constexpr std::int32_t kTokens = 1 << 30;
  const SlotLimits limits = {.num_blocks = 1, .block_tokens = kTokens, .max_step_rows = 16};
  Rows rows = Table({0, 0, 0, 0}, 4, {INT32_MAX - 2}, {2});
  rows.block_tokens = kTokens;
  CheckRows(rows, limits);
  rows.num_scheduled_tokens = {3};
  ExpectRule(rows, StepRule::kPosition, 0, INT32_MAX, limits);
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

TEST(SlotCode, EverySmallTable) {
  constexpr std::int32_t kFirst[] = {-1, 0, 1, 3};
  ForEachSequence(4, 4, [&](const std::vector<std::size_t>& entries) {
    std::vector<std::int32_t> table;
    for (const std::size_t entry : entries)
      table.push_back(static_cast<std::int32_t>(entry) - 1);
    ForEachSequence(4, 4, [&](const std::vector<std::size_t>& digits) {
      Rows rows =
          Table(table, 2, {kFirst[digits[0]], kFirst[digits[1]]},
                {static_cast<std::int32_t>(digits[2]), static_cast<std::int32_t>(digits[3])},
                digits[0] % 3);
      if (digits[1] % 2 == 1) rows.asked = {0, 2};
      ASSERT_NO_FATAL_FAILURE(CheckRows(rows, kSmall));
    });
  });
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

// Rows in the middle that are unlike the others, of every number.
TEST(SlotCode, TheMiddleIsUnlikeTheRest) {
  const SlotLimits limits = {.num_blocks = 4000, .block_tokens = 2, .max_step_rows = 601};
  for (std::size_t like = 0; like <= 300; ++like) {
    for (const bool run_in_middle : {false, true}) {
      std::vector<std::int64_t> slots;
      for (std::size_t i = 0; i < 601; ++i) {
        const bool middle = i >= 300 - like && i < 300 + like;
        const auto slot = static_cast<std::int64_t>(i);
        slots.push_back(middle == run_in_middle ? slot : 2 * slot + 2000);
      }
      ASSERT_NO_FATAL_FAILURE(CheckRows(Slots(slots), limits)) << like;
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
      Rows table = Table({}, 100, {}, {});
      pairs.block_tokens = table.block_tokens = 16;
      for (std::size_t i = 0; i < size; ++i) {
        slots.push_back(static_cast<std::int64_t>(i) * apart % 1600);
        pairs.block_idx.push_back(slots[i] / 16);
        pairs.local_position.push_back(slots[i] % 16);
        table.num_computed_tokens.push_back(static_cast<std::int32_t>(slots[i]));
        table.num_scheduled_tokens.push_back(1);
        const std::size_t begin = table.block_table.size();
        table.block_table.resize(begin + 100);
        std::iota(table.block_table.begin() + static_cast<std::ptrdiff_t>(begin),
                  table.block_table.end(), 0);
      }
      ASSERT_NO_FATAL_FAILURE(CheckRows(Slots(slots), limits)) << size;
      ASSERT_NO_FATAL_FAILURE(CheckRows(pairs, limits)) << size;
      ASSERT_NO_FATAL_FAILURE(CheckRows(table, limits)) << size;
    }
  }
}

// Block and offset of a position: at both ends of blocks of many sizes.
TEST(SlotCode, EndsOfBlocks) {
  for (const std::int32_t tokens : {1, 2, 3, 5, 7, 16, 48, 255, 784, 4096, 65535, 499979}) {
    const SlotLimits limits = {.num_blocks = 4, .block_tokens = tokens, .max_step_rows = 4096};
    constexpr std::size_t kStride = 4200;
    Rows rows = Table({}, kStride, {}, {});
    rows.block_tokens = tokens;
    for (std::int32_t entry = 0; entry < 4200; entry += entry < 8 ? 1 : 523) {
      for (const std::int32_t offset : {0, tokens / 2, tokens - 1}) {
        rows.num_computed_tokens.push_back(entry * tokens + offset);
        rows.num_scheduled_tokens.push_back(1);
        const std::size_t begin = rows.block_table.size();
        rows.block_table.resize(begin + kStride, -1);
        rows.block_table[begin + static_cast<std::size_t>(entry)] = entry % 4;
      }
    }
    ASSERT_NO_FATAL_FAILURE(CheckRows(rows, limits)) << tokens;
    // The same, and all of the rest of each block.
    for (std::size_t r = 0; r < rows.num_computed_tokens.size(); ++r)
      rows.num_scheduled_tokens[r] = std::min(tokens - rows.num_computed_tokens[r] % tokens, 60);
    ASSERT_NO_FATAL_FAILURE(CheckRows(rows, limits)) << tokens;
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

// A table so wide that the entries of eight requests lie more than 2^31 apart. Only the few that
// are read take memory.
TEST(SlotCode, VeryWideTable) {
  constexpr std::size_t kStride = (std::size_t{1} << 28) + (std::size_t{1} << 27);
  constexpr std::size_t kBytes = kStride * 8 * sizeof(std::int32_t);
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const entries = static_cast<std::int32_t*>(memory);
  std::int32_t positions[8];
  std::int32_t ones[8];
  std::vector<std::int64_t> slots;
  for (std::int32_t r = 0; r < 8; ++r) {
    positions[r] = 5 * r;
    ones[r] = 1;
    entries[static_cast<std::size_t>(r) * kStride + static_cast<std::size_t>(5 * r / 2)] = r * r;
    slots.push_back(r * r * 2 + 5 * r % 2);
  }
  const TableRows table = {.block_table = entries,
                           .table_stride = kStride,
                           .num_requests = 8,
                           .num_computed_tokens = positions,
                           .num_scheduled_tokens = ones,
                           .block_tokens = 2};
  const SlotLimits limits = {.num_blocks = 64, .block_tokens = 2, .max_step_rows = 8};
  std::uint8_t out[64];
  std::size_t bytes = 0;
  ASSERT_TRUE(EncodeSlots({.table = &table}, limits, out, &bytes).ok());
  CheckEncoded({out, bytes}, slots, false);
  ASSERT_EQ(munmap(memory, kBytes), 0);
}

}  // namespace
}  // namespace waymark
