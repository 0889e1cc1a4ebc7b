// Orders of steps and their ends that once made wrong rows, when rows of steps in flight lay in
// their pages: each is told in the same order, and ends in every way.
#include <gtest/gtest.h>

#include <string>

#include "blockstore/store/store.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

struct InOrder : testing::TestWithParam<bool> {  // whether the audit is on
  void BeginStep(bool device, std::uint64_t step, const std::vector<Event>& events,
                 const std::vector<std::int64_t>& slots) {
    device ? d.BeginDevice(step, events, slots) : d.Begin(step, events, slots);
  }
  void Submit(bool device, std::uint64_t step, const std::vector<std::int64_t>& slots,
              std::vector<int> numbers) {
    device ? d.SubmitDevice(step, slots, std::move(numbers)) : d.Submit(step, std::move(numbers));
  }
  void Step(bool device, std::uint64_t step, const std::vector<Event>& events,
            const std::vector<std::int64_t>& slots, std::vector<int> numbers) {
    BeginStep(device, step, events, slots);
    Submit(device, step, slots, std::move(numbers));
  }
  // Rows [0, 4) of a block, when everything has landed.
  std::string Block(int block) {
    EXPECT_TRUE(d.store().WaitIdle(std::chrono::seconds(10)).ok());
    EXPECT_TRUE(d.store().TakeFindings().empty());
    return d.Read({block}, 0, 4);
  }
  StoreDriver d{
      StoreDriver::With([](StoreOptions& o) { o.device_slots = true, o.audit = GetParam(); })};
};

// Once the seal of the step that did not run protected the drafts: the block was sealed with them,
// and found by its key.
TEST_P(InOrder, AStepThatDidNotRunSealsNoDrafts) {
  for (const bool device : {false, true}) {
    const std::uint64_t step = device ? 10 : 0;
    Step(device, step + 1, {Bind(0)}, {0, 1}, {10, 11});
    Step(device, step + 2, {}, {2, 3}, {20, 21});  // drafts, which are rejected
    BeginStep(device, step + 3, {Seal(0, 42 + step, 0)}, {2, 3});
    EXPECT_TRUE(d.store().Cancel(StepId(step + 3)).ok());
    d.Report({Bind(1, 42 + step)});
    Step(device, step + 4, {}, {2, 3}, {40, 41});
    const std::string at = device ? "1" : "";
    EXPECT_EQ(Block(0), "10@" + at + "1 11@" + at + "1 40@" + at + "4 41@" + at + "4");
    EXPECT_EQ(Block(1), "x x x x");
  }
}

// Once the draft of the first step was valid: the second wrote over it and filled the block, a third
// left no row there, and both were dropped.
TEST_P(InOrder, ADroppedStepLeavesNoRowOfAnEarlierDraft) {
  std::uint64_t step = 0;
  const auto run = [&](const char* third) {
    const std::uint64_t one = ++step, two = ++step;
    d.BeginDevice(one, {Bind(0)}, {0, 1, 2, 3});
    d.SubmitDevice(one, {0, 1, 2, 3}, {10, 11, 12, 13});  // row 3 is of a draft
    d.BeginDevice(two, {Seal(0, 42 + one, 0)}, {3});
    const std::string how = third;
    if (how == "at its begin") {
      d.BeginDevice(++step, {}, {3}, 1, /*drop=*/true);
    } else if (!how.empty()) {
      const std::int64_t slot = how == "not asked" ? NotAsked(3) : 3;
      BeginStep(how == "device", ++step, {}, {slot});
      EXPECT_TRUE(d.store().Drop(StepId(step)).ok());
    }
    EXPECT_TRUE(d.store().Drop(StepId(two)).ok());
    const std::string rows = Block(0);
    const std::string number = std::to_string(one);
    EXPECT_EQ(rows.substr(0, rows.rfind(' ')), "10@" + number + " 11@" + number + " 12@" + number);
    return rows.substr(rows.rfind(' ') + 1);
  };
  EXPECT_EQ(run(""), "c");
  EXPECT_EQ(run("at its begin"), "c");
  EXPECT_EQ(run("device"), "c");
  EXPECT_EQ(run("host"), "c");
  EXPECT_EQ(run("not asked"), "N");
}

// Once the copy took the seal of a step that did not run, which protected the fork's draft.
TEST_P(InOrder, AForkOfABlockWhoseSealDidNotRunIsWritten) {
  for (const bool device : {false, true}) {
    const std::uint64_t step = device ? 10 : 0;
    Step(device, step + 1, {Bind(0)}, {0, 1}, {10, 11});
    BeginStep(device, step + 2, {Seal(0, 42 + step, 0)}, {2, 3});
    EXPECT_TRUE(d.store().Cancel(StepId(step + 2)).ok());
    Step(device, step + 3, {Copy(0, 1)}, {6, 7}, {30, 31});  // row 3 is a draft, and rejected
    Step(device, step + 4, {}, {7}, {41});
    const std::string at = device ? "1" : "";
    EXPECT_EQ(Block(1), "10@" + at + "1 11@" + at + "1 30@" + at + "3 41@" + at + "4");
    EXPECT_EQ(Block(0), "10@" + at + "1 11@" + at + "1 n n");
  }
}

// Once the row of step 3 was compared with the draft of step 1, and right rows were voided.
TEST_P(InOrder, ARowIsComparedWithWhatStandsThereInItsTurn) {
  for (const bool late : {false, true}) {
    const std::uint64_t step = late ? 10 : 0;
    Step(/*device=*/true, step + 1, {Bind(0)}, {0, 1, 2, 3}, {10, 11, 12, 13});
    d.BeginDevice(step + 2, {Seal(0, 42 + step, 0)}, {3});
    if (!late) d.SubmitDevice(step + 2, {3}, {23});
    d.Begin(step + 3, {}, {3});  // a full hit is computed again
    d.Submit(step + 3, {23});
    if (late) d.SubmitDevice(step + 2, {3}, {23});
    const std::string at = late ? "1" : "";
    EXPECT_EQ(Block(0), "10@" + at + "1 11@" + at + "1 12@" + at + "1 ~23@" + at + "2");
  }
}

INSTANTIATE_TEST_SUITE_P(Audit, InOrder, testing::Bool());

}  // namespace
}  // namespace waymark
