#include "blockstore/store/batch_check.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/unit/blockstore/store/store_parts.h"

namespace waymark {
namespace {

StepRule RuleOf(const Event& event) {
  const Event events[] = {event};
  return BatchCheck(SmallOptions()).Events(events, 10).rule;
}

TEST(BatchCheck, NamesTheRuleThatAnEventBreaks) {
  EXPECT_EQ(RuleOf(Event::Bind(BlockId(7))), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Bind(BlockId(-3))), StepRule::kNone) << "a null block";
  EXPECT_EQ(RuleOf(Event::Bind(BlockId(8))), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(8), BlockId(0))), StepRule::kSrcOutOfRange);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(1), BlockId(1))), StepRule::kSelfCopy);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(1), BlockId(2), 5)), StepRule::kRowsOutOfRange);
  EXPECT_EQ(RuleOf(Event::Truncate(BlockId(1), 5, StepId(1))), StepRule::kRowsOutOfRange);
  EXPECT_EQ(RuleOf(Event::Seal(BlockId(1), {}, StepId(10))), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Seal(BlockId(1), {}, StepId(11))), StepRule::kSealStep);
  Event event = Event::Bind(BlockId(1));
  event.key_size = BlockKey::kMaxBytes + 1;
  EXPECT_EQ(RuleOf(event), StepRule::kKeyTooLong);
  event.type = static_cast<EventType>(99);
  EXPECT_EQ(RuleOf(event), StepRule::kUnknownEvent);
}

TEST(BatchCheck, NamesTheFirstMoveOfAGroupWithABlockTwice) {
  const auto move = [](int src, int dst, bool more) {
    return Event::Move(BlockId(src), BlockId(dst), more);
  };
  const Event twice[] = {Event::Bind(BlockId(0)), move(1, 2, true), move(3, 2, false)};
  const StepCode code = BatchCheck(SmallOptions()).Events(twice, 10);
  EXPECT_EQ(code.rule, StepRule::kDuplicateMove);
  EXPECT_EQ(code.index, 1u);
  EXPECT_EQ(code.value, 2);
  const Event apart[] = {move(1, 2, false), move(3, 2, false)};
  EXPECT_TRUE(BatchCheck(SmallOptions()).Events(apart, 10).ok());
}

TEST(BatchCheck, ChecksTheStepAndItsSlots) {
  StoreOptions options = SmallOptions();
  BatchCheck check(options);
  std::vector<std::int64_t> slots = {0, kPaddingSlot, 31, NotAsked(31)};
  StepBatch batch = {.step = 10};
  const auto rule = [&](std::uint64_t last) {
    batch.slots = slots.data(), batch.num_slots = slots.size();
    return check.Batch(batch, last).rule;
  };
  EXPECT_EQ(rule(9), StepRule::kNone);
  EXPECT_EQ(rule(10), StepRule::kStepNotIncreasing);
  slots.push_back(32);
  EXPECT_EQ(rule(9), StepRule::kSlotOutOfRange);
  EXPECT_EQ(check.Batch(batch, 9).index, 4u);
  slots.back() = NotAsked(32);
  EXPECT_EQ(rule(9), StepRule::kSlotOutOfRange);
  slots.assign(options.max_step_rows + 1, 0);
  EXPECT_EQ(rule(9), StepRule::kTooManyRows);
  slots.clear();
  batch.device_slots = true;
  EXPECT_EQ(rule(9), StepRule::kNone);
  options.device_slots = false;
  EXPECT_EQ(BatchCheck(options).Batch(batch, 9).rule, StepRule::kDeviceSlots);
  batch.step = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(rule(9), StepRule::kStepNotIncreasing);
}

}  // namespace
}  // namespace waymark
