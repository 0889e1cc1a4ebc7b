// Why a row is missing: the reason is that of the last write of its KV, or of what removed the row.
// Each case is a few steps of one block, told by StoreDriver::Read.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "blockstore/events.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

// Lands step 1 if this is the time for it.
void LandFirst(StoreDriver& d, bool now) {
  ASSERT_TRUE(!now || d.store().Land(StepId(1)));
}

std::vector<std::int64_t> NotAskedFor(std::vector<std::int64_t> slots) {
  for (std::int64_t& slot : slots)
    slot = NotAsked(slot);
  return slots;
}

TEST(MissingReason, OfRowsThatNobodyAskedForIsNotCaptured) {
  StoreDriver d;
  d.Step(1, {Bind(3), Bind(4)}, NotAskedFor(d.Slots({3, 4}, 0, 6)), {10, 11, 12, 13, 14, 15});
  EXPECT_EQ(d.Read({3, 4}, 0, 8), "N N N N N N n n") << "blocks without a page";
  d.Step(2, {Copy(4, 5), Copy(4, 6, 1)}, d.Slots({4}, 2, 3), {20});
  EXPECT_EQ(d.Read({3, 4}, 0, 8), "N N N N N N 20@2 n") << "with the page of another row";
  EXPECT_EQ(d.Read({5, 6}, 0, 8), "N N n n N n n n") << "copies";
  d.Step(3, {Move(5, 7), Bind(4)}, {}, {});
  EXPECT_EQ(d.Read({7, 4}, 0, 8), "N N n n n n n n") << "moved, and a new life";
}

// Regression: all rows of a block whose page was evicted, or that got none, were *capacity*, also
// those that no step had written.
TEST(MissingReason, OfRowsThatWereNotThereIsNotCapacity) {
  StoreDriver d(StoreDriver::WithPages(1, 0));
  d.Step(1, {Bind(3, 77), Copy(3, 4)}, d.Slots({3}, 1, 2), {11});
  EXPECT_EQ(d.Read({3, 4}, 0, 8), "x 11@1 x x x x x x");
  d.Step(2, {Release(3), Bind(5)}, d.Slots({5}, 0, 2), {20, 21});
  EXPECT_EQ(d.Read({3, 5}, 0, 8), "x c x x 20@2 21@2 n n") << "evicted";
  d.Step(3, {Bind(6), Copy(5, 7, 1), Copy(3, 4)}, d.Slots({6}, 2, 3), {30});
  EXPECT_EQ(d.Read({6, 7, 4}, 0, 12), "n n c n c n n n x c x x") << "no page, and copies";
  d.Step(4, {Release(5), Move(3, 8)}, NotAskedFor(d.Slots({6}, 3, 4)), {0});
  EXPECT_EQ(d.Read({6, 8}, 0, 8), "N N c N x c x x") << "not asked for: a prefix, as always";
  d.Step(5, {}, d.Slots({6}, 0, 1), {50});
  EXPECT_EQ(d.Read({6, 5}, 0, 8), "50@5 N c N c c n n") << "and with a page";
  d.Step(6, {Event::Reset()}, {}, {});
  EXPECT_EQ(d.Read({6, 8}, 0, 8), "c c c N x c x x") << "one range of lost rows";
}

TEST(MissingReason, OfADroppedStepIsCapacity) {
  for (const bool at_begin : {true, false}) {
    StoreDriver d;
    std::vector<std::int64_t> slots = d.Slots({3, 4}, 1, 6);
    slots.push_back(NotAsked(d.Slots({4}, 2, 3)[0]));
    d.Drop(at_begin, 1, {Bind(3), Bind(4)}, slots);
    EXPECT_EQ(d.Read({3, 4}, 0, 8), "n c c c c c N n");
  }
}

// Its forward may have written over them; but not over those of a sealed block (rule 5): what step 2
// wrote there is ignored anyway, and whether the ids of step 1 came before it was dropped makes no
// difference.
TEST(MissingReason, OfUnprotectedRowsUnderADroppedStepIsCapacity) {
  for (const bool sealed : {true, false}) {
    for (const bool at_begin : {true, false}) {
      for (const bool landed_first : {true, false}) {
        StoreDriver d;
        std::vector<Event> events = {Bind(3)};
        if (sealed) events.push_back(Seal(3, 77, 1));
        d.Begin(1, events, d.Slots({3}, 0, 3));
        d.Submit(1, {10, 11, 12});
        LandFirst(d, landed_first);
        d.Drop(at_begin, 2, {}, d.Slots({3}, sealed ? 1 : 2, 4));
        LandFirst(d, !landed_first);
        EXPECT_EQ(d.Read({3}, 0, 4), sealed ? "10@1 ~11@1 ~12@1 c" : "10@1 11@1 c c")
            << at_begin << landed_first;
      }
    }
  }
}

// Under other weights nothing is protected.
TEST(MissingReason, RowsOfOtherWeightsGoUnderADroppedStep) {
  for (const bool at_begin : {true, false}) {
    StoreDriver d;
    d.Begin(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4));
    d.Drop(at_begin, 2, {}, d.Slots({3}, 1, 4), 2);
    d.Submit(1, {10, 11, 12, 13});
    ASSERT_TRUE(d.store().Land(StepId(1)));
    EXPECT_EQ(d.Read({3}, 0, 4), "10@1 c c c");
  }
}

// Regression: a step writes over what a step wrote whose ids come late. The earlier row used to come
// back as valid if the later step had left none there: its KV is gone.
TEST(MissingReason, OfARowIsThatOfTheStepThatWroteOverIt) {
  enum class How { kSilent, kNotAsked, kDropped, kDroppedAtBegin, kCancelled, kLanded };
  const std::vector<std::pair<How, std::string>> cases = {
      {How::kSilent, "10@1 11@1 N"},       {How::kNotAsked, "10@1 11@1 N"},
      {How::kDropped, "10@1 11@1 c"},      {How::kDroppedAtBegin, "10@1 11@1 c"},
      {How::kCancelled, "10@1 11@1 12@1"}, {How::kLanded, "10@1 11@1 20@2"}};
  for (const auto& [how, expected] : cases) {
    for (const bool landed_before_the_end : {true, false}) {
      StoreDriver d;
      d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 3));
      d.Submit(1, {10, 11, 12});
      std::vector<std::int64_t> slots = d.Slots({3}, 2, 3);
      if (how == How::kNotAsked) slots = NotAskedFor(slots);
      StepBatch batch{2, 1, nullptr, 0, slots.data(), slots.size()};
      batch.drop = how == How::kDroppedAtBegin;
      ASSERT_EQ(d.store().BeginStep(batch).dropped(), batch.drop);
      LandFirst(d, landed_before_the_end);
      if (how == How::kDropped) {
        ASSERT_TRUE(d.store().Drop(StepId(2)).ok());
      } else if (how == How::kCancelled) {
        ASSERT_TRUE(d.store().Cancel(StepId(2)).ok());
      } else if (how == How::kDroppedAtBegin) {
        EXPECT_EQ(d.store().Submit(StepId(2), nullptr).rule, StepRule::kStepNotInFlight);
      } else {
        d.Submit(2, {how == How::kSilent ? -1 : 20});
      }
      LandFirst(d, !landed_before_the_end);
      (void)d.store().Land(StepId(2));
      EXPECT_EQ(d.Read({3}, 0, 3), expected) << static_cast<int>(how) << landed_before_the_end;
    }
  }
}

// Regression: the sealed row of step 1 was kept, although a step of other weights whose ids come
// late has written over it; and that step's row then came over that of step 3.
TEST(MissingReason, NoRowIsProtectedThatAStepOfOtherWeightsHasWritten) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 77, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Begin(2, {}, d.Slots({3}, 2, 4), 2);
  d.Begin(3, {}, d.Slots({3}, 3, 4), 1);
  d.Submit(2, {22, 23});
  ASSERT_TRUE(d.store().Land(StepId(2)));
  d.Land(3, {33});
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 11@1 22@2 33@3");
}

TEST(MissingReason, OfRowsLostByAResetIsCapacity) {
  StoreDriver d;
  d.Step(1, {Bind(3), Bind(4)}, d.Slots({3, 4}, 0, 6), {10, 11, 12, 13, 14, 15});
  d.Step(2, {Bind(5, 99), Bind(6)}, NotAskedFor(d.Slots({6}, 0, 2)), {20, 21});
  d.Step(3, {Event::Reset()}, d.Slots({4}, 2, 3), {30});
  EXPECT_EQ(d.Read({3, 4}, 0, 7), "c c c c c c 30@3");
  EXPECT_EQ(d.Read({5, 6}, 0, 8), "x x x x N N n n") << "what was missing keeps its reason";
  EXPECT_EQ(d.Read({7}, 0, 2), "n n");
  d.Step(4, {Bind(3)}, {}, {});
  EXPECT_EQ(d.Read({3}, 0, 4), "n n n n");
}

TEST(MissingReason, ARewriteThatDidNotRunLeavesTheRowsBefore) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 2), {10, -1});
  d.Begin(2, {Bind(4, 99)}, d.Slots({3, 4}, 0, 5), 2);
  ASSERT_TRUE(d.store().Cancel(StepId(2)).ok());
  d.Step(3, {Copy(3, 5, 3)}, {}, {}, 2);
  EXPECT_EQ(d.Read({3, 4}, 0, 8), "10@1 N n n x x x x") << "events have happened all the same";
  EXPECT_EQ(d.Read({5}, 0, 4), "10@1 N n n");
}

// Whether the truncation came before or after the row: it is gone either way.
TEST(MissingReason, OfATruncatedRowIsNeverWritten) {
  StoreDriver d;
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 3), {10, -1, 12});
  d.Begin(2, {}, d.Slots({3}, 3, 4));
  ASSERT_TRUE(d.store().Drop(StepId(2)).ok());
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 N 12@1 c");
  d.Step(3, {Truncate(3, 1, 2)}, {}, {});
  EXPECT_EQ(d.Read({3}, 0, 4), "10@1 n n n");
}

}  // namespace
}  // namespace waymark
