#include "blockstore/store/event_check.h"

#include <gtest/gtest.h>

namespace waymark {
namespace {

StepRule RuleOf(const Event& event) {
  const Event events[] = {event};
  return EventCheck(8, 4).Events(events, /*last=*/9, /*own=*/10).rule;
}

TEST(EventCheck, NamesTheRuleThatAnEventBreaks) {
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

TEST(EventCheck, NamesTheFirstMoveOfAGroupWithABlockTwice) {
  const auto move = [](int src, int dst, bool more) {
    return Event::Move(BlockId(src), BlockId(dst), more);
  };
  const Event twice[] = {Event::Bind(BlockId(0)), move(1, 2, true), move(3, 2, false)};
  const StepCode code = EventCheck(8, 4).Events(twice, 9, 10);
  EXPECT_EQ(code.rule, StepRule::kDuplicateMove);
  EXPECT_EQ(code.index, 1u);
  EXPECT_EQ(code.value, 2);
  const Event apart[] = {move(1, 2, false), move(3, 2, false)};
  EXPECT_TRUE(EventCheck(8, 4).Events(apart, 9, 10).ok());
}

TEST(EventCheck, ASealIsNotLaterThanTheLastStepAndTheOneToCome) {
  const auto rule = [](std::uint64_t step, std::uint64_t own) {
    const Event seal[] = {Event::Seal(BlockId(1), {}, StepId(step))};
    return EventCheck(8, 4).Events(seal, /*last=*/9, own).rule;
  };
  EXPECT_EQ(rule(9, 0), StepRule::kNone);
  EXPECT_EQ(rule(0, 0), StepRule::kNone) << "the step that is begun next";
  EXPECT_EQ(rule(10, 0), StepRule::kSealStep);
  EXPECT_EQ(rule(12, 12), StepRule::kNone);
  EXPECT_EQ(rule(11, 12), StepRule::kNone) << "of a schedule without a forward";
  EXPECT_EQ(rule(13, 12), StepRule::kSealStep);
}

}  // namespace
}  // namespace waymark
