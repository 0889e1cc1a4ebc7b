// Random schedules of both engine simulators: nothing wrong, nothing unexplained.
//
// WAYMARK_SCHEDULES (default 10000) schedules from seed WAYMARK_SEED (default 1) on; the test
// prints seed and features of each that fails. For longer runs: waymark_schedules.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/conformance/schedules.h"
#include "tests/support/failing_new.h"
#include "tests/support/test_seed.h"

namespace waymark::conformance {
namespace {

TEST(RandomSchedules, NothingWrongNothingUnexplained) {
  const std::uint64_t count = FromEnvironment("WAYMARK_SCHEDULES", 10000);
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  Totals totals;
  for (std::uint64_t seed = first; seed < first + count && totals.failed < 5; ++seed) {
    Schedule schedule = DrawSchedule(seed);
    schedule.options.fail_allocation = [](std::uint64_t n) { FailAllocation(n); };
    const Outcome outcome = RunSchedule(schedule);
    totals.Add(outcome);
    if (outcome.clean(schedule)) continue;
    ++totals.failed;
    ADD_FAILURE() << outcome.Describe(schedule);
  }
  std::printf("seeds %llu ... %llu: %s\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1), totals.ToString().c_str());
  EXPECT_GT(totals.checks.rows, 0);
}

// Drawn schedules that failed, each for the simulator that it has: loaded blocks whose seals were
// not reported again after a second step in a row that did not run; rows that a truncation lost,
// for which no page was free, while pages were not said to be scarce. (By their features: what is
// drawn changes with the pairs that engines can have.)
TEST(RandomSchedules, SchedulesThatFailed) {
  Schedule lost;
  lost.options.seed = 70125746;
  lost.options.timing.seed = 7993934967905597710;
  lost.features =
      "draft=.796 preempt=.082 reset=.01337 rollback=.302 fork=.155 partial=.524 external=.1375 "
      "stream=.3615 mute=.17 rewind=.1677 full_hit=.765 pad=.4 pause=.068 mid=.676 "
      "completion_seal=1 guard=1 clip=1 stages=2 layers=8 behind=2 shuffle=1 truncate_delay=3 "
      "report=4 slow=9 max_pages=-1 spare=64";
  ASSERT_TRUE(SetOptions(lost.options, lost.features));
  Schedule again;
  again.options.megatron = true;
  again.options.seed = 70146823;
  again.options.timing.seed = 16309619885267170953u;
  again.features =
      "draft=.676 drop=.0901 reset=.01847 rollback=.758 partial=.812 swap=.325 no_truncate=.379 "
      "completion_seal=1 audit=1 shuffle=1 manual=1 lag=60 log_bytes=1";
  ASSERT_TRUE(SetOptions(again.options, again.features));
  for (const Schedule& schedule : {again, lost}) {
    const Outcome outcome = RunSchedule(schedule);
    EXPECT_TRUE(outcome.clean(schedule)) << outcome.Describe(schedule);
  }
}

// Schedules with rows by key that failed: rows of other weights for what was lost after an update
// with the cache kept (the first two), and for a row that a later user of the block took back; no
// rows for what was copied or moved.
TEST(RandomSchedules, SchedulesWithATierThatFailed) {
  constexpr const char* kFull =
      "by_key=1 external=.2 tier=.6 draft=.5 preempt=.05 abort=.01 bump=.04 fork=.05 partial=.3 "
      "stream=.1 rewind=.03 full_hit=.4 pad=.3 behind=3 shuffle=1 drop=.03 cancel=.03 reset=.005 "
      "mute=.1 silent=.03 ";
  for (const char* const more :
       {"lost_by_key=1", "lost_by_key=1 max_pages=16", "after=.5", "swap=.3 draft=0 rewind=0",
        "swap=.3 draft=0 rewind=0 stages=2 layers=8"}) {
    std::int64_t by_key = 0;
    for (std::uint64_t i = 0; i < 100; ++i) {
      Schedule schedule;
      schedule.options.seed = 1000 + i / 2;
      schedule.options.megatron = i % 2 == 0;
      schedule.features = std::string(kFull) + more;
      ASSERT_TRUE(SetOptions(schedule.options, schedule.features));
      const Outcome outcome = RunSchedule(schedule);
      ASSERT_TRUE(outcome.clean(schedule)) << outcome.Describe(schedule);
      by_key += outcome.by_key.rows;
    }
    EXPECT_GT(by_key, 1000) << more;
  }
}

// Every pair of features that an engine can have is on together, by design: each mixture has the
// pair of its seed. The pairs that are said to exclude each other are on in no schedule.
TEST(RandomSchedules, HaveEveryPairOfFeatures) {
  const std::vector<std::string_view> names = MixtureFeatures();
  std::map<std::pair<std::string_view, std::string_view>, int> occurred[2];
  const std::uint64_t count = SeedsOfAllPairs();
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    const Schedule schedule = DrawSchedule(seed);
    if (schedule.pair) {
      EXPECT_TRUE(HasFeature(schedule.options, schedule.pair->first) &&
                  HasFeature(schedule.options, schedule.pair->second))
          << "seed " << seed << " is to have " << schedule.pair->first << " and "
          << schedule.pair->second << ": " << schedule.features;
    }
    std::vector<std::string_view> on;
    for (const std::string_view name : names)
      if (HasFeature(schedule.options, name)) on.push_back(name);
    for (std::size_t i = 0; i < on.size(); ++i) {
      for (std::size_t j = i + 1; j < on.size(); ++j)
        ++occurred[schedule.options.megatron][{on[i], on[j]}];
    }
  }
  std::size_t pairs = 0;
  for (const bool megatron : {false, true}) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      for (std::size_t j = i + 1; j < names.size(); ++j) {
        const bool together = GoTogether(names[i], names[j]);
        pairs += together;
        EXPECT_EQ(occurred[megatron].contains({names[i], names[j]}), together)
            << (megatron ? "megatron: " : "vllm: ") << names[i] << " and " << names[j] << " in "
            << count << " schedules";
      }
    }
  }
  EXPECT_EQ(pairs, 2 * FeaturePairs().size());
  std::printf("%zu pairs of %zu features in %llu schedules\n", pairs, names.size(),
              static_cast<unsigned long long>(count));
}

// Pipeline stages once found different passes under a key, because pages contended for it when they
// had landed.
TEST(RandomSchedules, StagesFindTheSamePass) {
  for (const std::uint64_t seed :
       {640009400, 640012256, 640004067, 640010749, 640005580, 640008377, 640012064}) {
    Schedule schedule;
    schedule.options.seed = seed;
    schedule.features =
        "draft=.5 preempt=.03 abort=.01 bump=.02 rollback=.3 fork=.05 partial=.3 tier=.5 swap=.3 "
        "stream=.1 full_hit=.4 pad=.3 behind=3 drop=.03 cancel=.03 reset=.03 external=.1 mute=.1 "
        "silent=.03 stages=2 page_tokens=2 late=1";
    ASSERT_TRUE(SetOptions(schedule.options, schedule.features));
    const Outcome outcome = RunSchedule(schedule);
    EXPECT_TRUE(outcome.clean(schedule)) << outcome.Describe(schedule);
  }
}

}  // namespace
}  // namespace waymark::conformance
