#include "blockstore/store/batch_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace waymark {
namespace {

using ::testing::ElementsAre;

constexpr EventLimits kLimits = {.num_blocks = 8, .block_tokens = 4, .last_seal = 10};
StepCode Check(const std::vector<Event>& events, const EventLimits& limits = kLimits) {
  std::vector<BlockId> scratch = {BlockId(1), BlockId(1)};
  std::vector<Event> copy(events.size() + 1, Event::Reset());
  const StepCode code = CheckEvents(events, limits, scratch, copy.data());
  EXPECT_EQ(copy.back(), Event::Reset()) << "is behind the room";
  copy.pop_back();
  if (code.ok()) {
    EXPECT_EQ(copy, events);
  }
  EXPECT_EQ(CheckEvents(events, limits, scratch).ToStatus(), code.ToStatus()) << "without a copy";
  EXPECT_THAT(scratch, ElementsAre(BlockId(1), BlockId(1))) << "is left as it was";
  return code;
}

StepRule RuleOf(const Event& event, const EventLimits& limits = kLimits) {
  return Check({event}, limits).rule;
}

TEST(CheckEvents, NamesTheRuleThatAnEventBreaks) {
  EXPECT_EQ(RuleOf(Event::Bind(BlockId(7))), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Bind(BlockId(-3))), StepRule::kNone) << "a null block";
  EXPECT_EQ(RuleOf(Event::Bind(BlockId(8))), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Retain(BlockId(8))), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Release(BlockId(8))), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Seal(BlockId(8), {})), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Move(BlockId(1), BlockId(8))), StepRule::kBlockOutOfRange);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(8), BlockId(0))), StepRule::kSrcOutOfRange);
  EXPECT_EQ(RuleOf(Event::Move(BlockId(8), BlockId(0))), StepRule::kSrcOutOfRange);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(1), BlockId(1))), StepRule::kSelfCopy);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(-1), BlockId(-1))), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(1), BlockId(2), 4)), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(1), BlockId(2), 5)), StepRule::kRowsOutOfRange);
  EXPECT_EQ(RuleOf(Event::Copy(BlockId(1), BlockId(2), -2)), StepRule::kRowsOutOfRange);
  EXPECT_EQ(RuleOf(Event::Truncate(BlockId(1), 4, StepId(99))), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Truncate(BlockId(1), 5, StepId(1))), StepRule::kRowsOutOfRange);
  EXPECT_EQ(RuleOf(Event::Truncate(BlockId(1), Event::kAllRows, StepId(1))),
            StepRule::kRowsOutOfRange);
  EXPECT_EQ(RuleOf(Event::Seal(BlockId(1), {}, StepId(10))), StepRule::kNone);
  EXPECT_EQ(RuleOf(Event::Seal(BlockId(1), {})), StepRule::kNone) << "the step that is begun next";
  EXPECT_EQ(RuleOf(Event::Seal(BlockId(1), {}, StepId(11))), StepRule::kSealStep);
  for (int type = 0; type < 1 << 16; ++type) {
    Event event;
    event.type = static_cast<EventType>(type);
    if (type >= 1 && type <= 8) {
      event.key_size = BlockKey::kMaxBytes + 1;
      event.src = 1;
      event.block = 2;
      EXPECT_EQ(RuleOf(event),
                event.type == EventType::kReset ? StepRule::kNone : StepRule::kKeyTooLong);
    } else {
      ASSERT_EQ(RuleOf(event), StepRule::kUnknownEvent) << type;
    }
  }
}

TEST(CheckEvents, NamesTheEventAndTheValue) {
  const auto move = [](int src, int dst, bool more) {
    return Event::Move(BlockId(src), BlockId(dst), more);
  };
  const Event good = Event::Bind(BlockId(0));
  struct Broken {
    std::vector<Event> events;
    StepRule rule;
    std::uint64_t index;
    std::int64_t value;
  };
  const Broken cases[] = {
      {{good, good, Event::Seal(BlockId(1), {}, StepId(12)), Event::Bind(BlockId(9))},
       StepRule::kSealStep,
       2,
       12},
      {{good, move(1, 2, true), move(3, 2, false)}, StepRule::kDuplicateMove, 1, 2},
      {{good, move(5, 2, true), move(4, 1, true), move(5, 3, false)},
       StepRule::kDuplicateMove,
       1,
       5},
      {{good, move(1, 2, true), move(9, 3, true), move(1, 2, false)},
       StepRule::kSrcOutOfRange,
       2,
       9},
      {{move(1, 2, true), move(2, 1, false), Event::Bind(BlockId(9))},
       StepRule::kBlockOutOfRange,
       2,
       9},
      {{good, move(1, 2, true)}, StepRule::kUnfinishedMove, 1, 1},
      {{move(1, 2, true), move(2, 1, true), good}, StepRule::kUnfinishedMove, 1, 1},
  };
  for (const Broken& broken : cases) {
    const StepCode code = Check(broken.events);
    EXPECT_EQ(code.code, static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(code.rule, broken.rule) << code.ToStatus();
    EXPECT_EQ(code.index, broken.index) << code.ToStatus();
    EXPECT_EQ(code.value, broken.value) << code.ToStatus();
  }
  EXPECT_TRUE(Check({move(1, 2, false), move(3, 2, false)}).ok()) << "two groups";
  EXPECT_TRUE(
      Check({move(-1, 2, true), move(-1, 3, true), move(4, -1, true), move(5, -1, false)}).ok())
      << "null blocks";
  EXPECT_TRUE(Check({}).ok());
}

TEST(ForEachPiece, AGroupOfMovesIsInOnePiece) {
  std::vector<Event> events(kEventsOfPiece - 1, Event::Retain(BlockId(1)));
  for (int i = 0; i < 300; ++i)
    events.push_back(Event::Move(BlockId(i), BlockId(i + 1), /*more=*/i < 299));
  events.push_back(Event::Reset());
  std::vector<std::size_t> sizes;
  std::vector<Event> seen;
  ForEachPiece(events, [&](std::span<const Event> piece) {
    sizes.push_back(piece.size());
    seen.insert(seen.end(), piece.begin(), piece.end());
  });
  EXPECT_THAT(sizes, ElementsAre(kEventsOfPiece - 1 + 300, 1));
  EXPECT_EQ(seen, events);
}

}  // namespace
}  // namespace waymark
