// Orders of steps and their ends that once made wrong rows, when rows of steps in flight lay in
// their pages: each is told in the same order, and ends in every way.
#include <gtest/gtest.h>

#include <string>

#include "blockstore/store/store.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

struct InOrder : testing::TestWithParam<bool> {  // whether the audit is on
  void Step(std::uint64_t step, const std::vector<Event>& events,
            const std::vector<std::int64_t>& slots, std::vector<int> numbers) {
    d.Begin(step, events, slots);
    d.Submit(step, std::move(numbers));
  }
  // Rows [0, 4) of a block, when everything has landed.
  std::string Block(int block) {
    EXPECT_TRUE(d.store().WaitIdle(std::chrono::seconds(10)).ok());
    EXPECT_TRUE(d.store().TakeFindings().empty());
    return d.Read({block}, 0, 4);
  }
  StoreDriver d{StoreDriver::With([](StoreOptions& o) { o.audit = GetParam(); })};
};

// Once the seal of the step that did not run protected the drafts: the block was sealed with them,
// and found by its key.
TEST_P(InOrder, AStepThatDidNotRunSealsNoDrafts) {
  Step(1, {Bind(0)}, {0, 1}, {10, 11});
  Step(2, {}, {2, 3}, {20, 21});  // drafts, which are rejected
  d.Begin(3, {Seal(0, 42, 0)}, {2, 3});
  EXPECT_TRUE(d.store().Cancel(StepId(3)).ok());
  d.Report({Bind(1, 42)});
  Step(4, {}, {2, 3}, {40, 41});
  EXPECT_EQ(Block(0), "10@1 11@1 40@4 41@4");
  EXPECT_EQ(Block(1), "x x x x");
}

// Once the draft of the first step was valid: the second wrote over it and filled the block, a third
// left no row there, and both were dropped.
TEST_P(InOrder, ADroppedStepLeavesNoRowOfAnEarlierDraft) {
  std::uint64_t step = 0;
  const auto run = [&](const std::string& third) {
    const std::uint64_t one = ++step, two = ++step;
    Step(one, {Bind(0)}, {0, 1, 2, 3}, {10, 11, 12, 13});  // row 3 is of a draft
    d.Begin(two, {Seal(0, 42 + one, 0)}, {3});
    const std::int64_t slot = third == "not asked" ? NotAsked(3) : 3;
    if (!third.empty()) d.Drop(third == "at its begin", ++step, {}, {slot});
    EXPECT_TRUE(d.store().Drop(StepId(two)).ok());
    const std::string rows = Block(0);
    const std::string number = std::to_string(one);
    EXPECT_EQ(rows.substr(0, rows.rfind(' ')), "10@" + number + " 11@" + number + " 12@" + number);
    return rows.substr(rows.rfind(' ') + 1);
  };
  EXPECT_EQ(run(""), "c");
  EXPECT_EQ(run("at its begin"), "c");
  EXPECT_EQ(run("behind it"), "c");
  EXPECT_EQ(run("not asked"), "N");
}

// Once the copy took the seal of a step that did not run, which protected the fork's draft.
TEST_P(InOrder, AForkOfABlockWhoseSealDidNotRunIsWritten) {
  Step(1, {Bind(0)}, {0, 1}, {10, 11});
  d.Begin(2, {Seal(0, 42, 0)}, {2, 3});
  EXPECT_TRUE(d.store().Cancel(StepId(2)).ok());
  Step(3, {Copy(0, 1)}, {6, 7}, {30, 31});  // row 3 is a draft, and rejected
  Step(4, {}, {7}, {41});
  EXPECT_EQ(Block(1), "10@1 11@1 30@3 41@4");
  EXPECT_EQ(Block(0), "10@1 11@1 n n");
}

// Once the row of step 3 was compared with the draft of step 1, and right rows were voided.
TEST_P(InOrder, ARowIsComparedWithWhatStandsThereInItsTurn) {
  for (const bool late : {false, true}) {
    const std::uint64_t step = late ? 10 : 0;
    Step(step + 1, {Bind(0)}, {0, 1, 2, 3}, {10, 11, 12, 13});
    d.Begin(step + 2, {Seal(0, 42 + step, 0)}, {3});
    if (!late) d.Submit(step + 2, {23});
    d.Begin(step + 3, {}, {3});  // a full hit is computed again
    d.Submit(step + 3, {23});
    if (late) d.Submit(step + 2, {23});
    const std::string at = late ? "1" : "";
    EXPECT_EQ(Block(0), "10@" + at + "1 11@" + at + "1 12@" + at + "1 ~23@" + at + "2");
  }
}

INSTANTIATE_TEST_SUITE_P(Audit, InOrder, testing::Bool());

}  // namespace
}  // namespace waymark
