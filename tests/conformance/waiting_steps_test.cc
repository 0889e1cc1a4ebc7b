// Steps that wait in the log: what is fetched of them, and the thread that waits with them.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/direct.h"
#include "tests/conformance/faults/probe.h"
#include "tests/support/failing_new.h"

namespace waymark::conformance {
namespace {

const std::vector<int> kTens = {10, 11, 12, 13};

class CountedSlots final : public StepRows {
 public:
  bool Poll() override { return come; }
  std::optional<std::span<const std::int64_t>> Slots() override {
    ++asked;
    return slots_;
  }
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    rows_.Land(first, destinations, verdicts);
  }
  void Done() override {}
  bool come = true;
  int asked = 0;

 private:
  const std::vector<std::int64_t> slots_ = {0, 1, 2, 3};
  TagRows rows_{kTens};
};

// step_rows.h: Slots() is called once.
TEST(WaitingSteps, SlotsAreAskedForOnceThoughNothingIsFetched) {
  CountedSlots rows;
  StoreOptions options = Direct::Options();
  options.ahead_bytes = 0;
  Direct direct(options);
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {});
  (void)direct.BeginDevice(2, {}, {0, 1, 2, 3});
  ASSERT_TRUE(direct.store().Submit(StepId(2), &rows).ok());
  direct.FetchAhead();
  (void)direct.store().Cancel(StepId(1));
  ASSERT_TRUE(direct.Land(2));
  EXPECT_EQ(direct.Tags({0}, 4), kTens);
  EXPECT_EQ(rows.asked, 1);
}

// Rows of which one layer is missing, or that did not ask: the audit compares the other layers.
class LayerRows final : public StepRows {
 public:
  explicit LayerRows(int tag) : tag_(tag) {}
  void Land(std::uint32_t /*first*/, std::span<std::uint8_t* const> /*destinations*/,
            std::span<Reason> verdicts) override {
    for (Reason& verdict : verdicts)
      verdict = Reason::kNotCaptured;
  }
  bool LandLayers(std::uint32_t /*row*/, std::uint8_t* destination,
                  std::span<std::uint8_t> written) override {
    for (int id = 0; id < 4; ++id)
      destination[id] = static_cast<std::uint8_t>(tag_ + id % 2);
    written[0] = 1;
    written[1] = 0;
    return true;
  }
  void Done() override {}

 private:
  const int tag_;
};

// Rule 4: fetching changes no state.
TEST(WaitingSteps, FetchingDoesNotChangeWhatTheAuditFinds) {
  for (const bool fetched : {false, true}) {
    LayerRows others(200);
    StoreOptions options = Direct::Options();
    options.audit = true;
    Direct direct(options);
    direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), {}, StepId(1))}, Slots({0}),
                kTens);
    (void)direct.Begin(2, {}, {});
    (void)direct.Begin(3, {}, Slots({0}));  // somebody has forgotten a Bind
    if (!fetched) (void)direct.store().Cancel(StepId(2));
    ASSERT_TRUE(direct.store().Submit(StepId(3), &others).ok());
    if (fetched) {
      EXPECT_FALSE(direct.store().LandOne());  // step 2 is open
      (void)direct.store().Cancel(StepId(2));
    }
    ASSERT_TRUE(direct.Land(3));
    EXPECT_EQ(direct.store().GetStats().steps_ahead, fetched ? 1u : 0u);
    EXPECT_EQ(direct.Tags({0}, 4), std::vector<int>(4, -1)) << (fetched ? "fetched ahead" : "");
  }
}

// An allocation fails while the log is looked at.
TEST(WaitingSteps, WithoutMemoryNoStepTakesTheRowsOfAnother) {
  for (std::uint64_t at = 2; at < 70; ++at) {
    std::deque<LateRows> rows;
    StoreOptions options = Direct::Options();
    options.max_steps_in_flight = 128;
    Direct direct(options);
    const std::int64_t slot = 0;
    const Event bind = Event::Bind(BlockId(0));
    (void)direct.Begin(1, {bind}, {});
    for (std::uint64_t step = 2; step < 72; ++step) {
      const StepBatch batch{step, 1, nullptr, 0, &slot, 1};
      if (step == at) FailAllocation(1);
      const StepCode code = direct.store().BeginStep(batch);
      FailAllocation(0);
      ASSERT_TRUE(code.ok());
    }
    for (std::uint64_t step = 2; step < 72; ++step) {
      rows.emplace_back(std::vector<int>{static_cast<int>(step)}).come = true;
      ASSERT_TRUE(direct.store().Submit(StepId(step), &rows.back()).ok());
    }
    (void)direct.store().Cancel(StepId(1));
    direct.LandAll();
    EXPECT_EQ(direct.Tags({0}, 1), std::vector<int>{71}) << "no memory at step " << at;
    for (const LateRows& of_step : rows) {
      EXPECT_EQ(of_step.dones.load(), 1) << "no memory at step " << at;
      EXPECT_FALSE(of_step.used_after_done.load()) << "no memory at step " << at;
    }
    if (HasFailure()) break;
  }
}

// Voluntary context switches of this process's thread "wm-landing"; -1: there is none.
long Switches() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name != "wm-landing") continue;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("voluntary_ctxt_switches:")) return std::stol(line.substr(24));
    }
  }
  return -1;
}

// Once a step was submitted behind an open one, and there was no room for its rows.
TEST(WaitingSteps, TheThreadSleepsWhenTheLogIsEmpty) {
  LateRows second({20});
  second.come = true;
  StoreOptions options = Direct::Options();
  options.landing = Landing::kThread;
  options.ahead_bytes = 0;
  Direct direct(options);
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct.Begin(2, {}, {1});
  ASSERT_TRUE(direct.store().Submit(StepId(2), &second).ok());
  while (second.polls == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(direct.Submit(1, {10}).ok());
  ASSERT_TRUE(direct.store().WaitIdle(std::chrono::seconds(5)).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // it naps before it sleeps
  const long before = Switches();
  if (before < 0) GTEST_SKIP() << "no /proc";
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_LT(Switches() - before, 40) << "it looks for ids though no step waits";
}

}  // namespace
}  // namespace waymark::conformance
