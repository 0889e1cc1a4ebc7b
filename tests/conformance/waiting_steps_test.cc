// Steps that wait in the log: what is fetched of them, and the thread that waits with them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
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
    Direct direct(Direct::With([](StoreOptions& o) { o.audit = true; }));
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
    Direct direct(Direct::With([](StoreOptions& o) { o.max_steps_in_flight = 128; }));
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
  Direct direct(
      Direct::With([](StoreOptions& o) { o.landing = Landing::kThread, o.ahead_bytes = 0; }));
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

// The steps of a device that hangs, at 50 a second, which come in their order when it goes on.
class HungRows final : public StepRows {
 public:
  HungRows(const std::atomic<bool>& hangs, bool before) : hangs_(hangs), before_(before) {}
  bool Poll() override { return before_ || !hangs_.load(); }
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    rows_.Land(first, destinations, verdicts);
  }
  void Done() override { ++dones; }
  int dones = 0;

 private:
  const std::atomic<bool>& hangs_;
  const bool before_;  // it ran before the device hung
  TagRows rows_{{10}};
};

// Rule 11. Steps are lost `ids_timeout` after their Submit, one by one, and nothing else is.
// WAYMARK_HUNG_SECONDS (default 1) is how long the device hangs; ids_timeout is a twelfth of it.
TEST(WaitingSteps, ADeviceThatHangsCostsTheStepsOfThatTime) {
  const char* const seconds = std::getenv("WAYMARK_HUNG_SECONDS");
  const std::chrono::milliseconds hung(1000 * (seconds == nullptr ? 1 : std::atoi(seconds)));
  const std::chrono::milliseconds timeout = hung / 12, interval(20);
  const auto hung_steps = static_cast<std::uint64_t>(hung / interval);
  const std::uint64_t others = 2 * static_cast<std::uint64_t>(timeout / interval) + 4;
  std::atomic<bool> hangs = false;
  std::deque<HungRows> rows;
  StoreOptions options = Direct::Options();
  options.landing = Landing::kThread;
  options.num_blocks = static_cast<std::int32_t>(hung_steps + 2 * others);
  options.max_steps_in_flight = 8;
  options.ids_timeout = timeout;
  options.overdue_after = std::chrono::milliseconds(0);
  Direct direct(options);
  std::vector<std::chrono::steady_clock::time_point> submitted;
  // Each step binds a block and writes a row of it.
  const auto run = [&](std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t block = submitted.size();
      const Event bind = Event::Bind(BlockId(static_cast<std::int32_t>(block)));
      const auto slot = static_cast<std::int64_t>(block) * kDirectBlock;
      const StepBatch batch{block + 1, 1, &bind, 1, &slot, 1};
      ASSERT_TRUE(direct.store().BeginStep(batch).ok()) << block;
      rows.emplace_back(hangs, !hangs.load());
      ASSERT_TRUE(direct.store().Submit(StepId(block + 1), &rows.back()).ok());
      submitted.push_back(std::chrono::steady_clock::now());
      std::this_thread::sleep_for(interval);
    }
  };
  run(others);
  hangs = true;
  run(hung_steps);
  hangs = false;
  const auto end = std::chrono::steady_clock::now();
  run(others);
  ASSERT_TRUE(direct.store().WaitIdle(std::chrono::seconds(30)).ok());
  std::uint64_t lost = 0;
  for (std::uint64_t block = 0; block < submitted.size(); ++block) {
    const BlockId id(static_cast<std::int32_t>(block));
    const Snapshot snapshot = direct.store().TakeSnapshot({&id, 1}, 0, 1).value();
    ASSERT_TRUE(snapshot.Wait(std::chrono::seconds(30)).ok());
    const RowInfo info = snapshot.ReadRows()->infos[0];
    lost += info.valid() ? 0 : 1;
    const bool before = block < others, after = block >= others + hung_steps;
    // A thread that is starved looks late, and then the ids have come.
    if (before || after || end - submitted[block] < timeout) {
      EXPECT_TRUE(info.valid()) << block << " " << ReasonName(info.reason);
    } else if (!info.valid()) {
      EXPECT_EQ(info.reason, Reason::kNotCaptured) << block;
    }
  }
  EXPECT_GT(lost, 0u);
  EXPECT_EQ(direct.store().GetStats().log_losses, 0u);
  EXPECT_EQ(direct.store().GetStats().steps_dropped, 0u);
  for (const HungRows& of_step : rows)
    EXPECT_EQ(of_step.dones, 1);
  std::printf("%llu steps, %llu lost\n", static_cast<unsigned long long>(submitted.size()),
              static_cast<unsigned long long>(lost));
}

}  // namespace
}  // namespace waymark::conformance
