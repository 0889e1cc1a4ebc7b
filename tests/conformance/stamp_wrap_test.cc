// A store whose stamps hold 12 bits of a step wraps all the time: nothing is wrong, and nothing is
// missing but by capacity.
#include <gtest/gtest.h>

#include "tests/conformance/schedules.h"

namespace waymark::conformance {
namespace {

struct Wrapping {
  const char* name;
  bool megatron;
  const char* features;
};

class StampWrap : public testing::TestWithParam<Wrapping> {};

TEST_P(StampWrap, LosesNothingButByCapacity) {
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  for (std::uint64_t seed = first; seed < first + 3; ++seed) {
    Schedule schedule;
    schedule.options.seed = seed;
    schedule.options.megatron = GetParam().megatron;
    schedule.options.audit = true;
    ASSERT_TRUE(SetOptions(schedule.options, GetParam().features));
    schedule.steps = 13000;
    schedule.features = GetParam().features;
    auto engine = sim::Engine::Create(schedule.options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    (*engine)->Run(schedule.steps);
    (*engine)->Finish();
    Outcome outcome;
    outcome.checks = (*engine)->checks();
    EXPECT_EQ(outcome.checks.wrong, 0) << outcome.Describe(schedule);
    EXPECT_EQ(outcome.checks.unexplained, 0) << outcome.Describe(schedule);
    for (int reason = 0; reason < kNumReasons; ++reason) {
      if (static_cast<Reason>(reason) == Reason::kCapacity) continue;
      EXPECT_EQ(outcome.checks.missing[static_cast<std::size_t>(reason)], 0)
          << ReasonName(static_cast<Reason>(reason)) << ": " << outcome.Describe(schedule);
    }
    const Stats stats = (*engine)->StoreStats(0);
    EXPECT_GE(stats.rebases, 3u) << outcome.Describe(schedule);
    EXPECT_EQ(stats.audit_voided_rows, 0u) << outcome.Describe(schedule);
    EXPECT_GT(outcome.checks.exact + outcome.checks.kept, outcome.checks.rows * 9 / 10)
        << outcome.Describe(schedule);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engines, StampWrap,
    testing::Values(Wrapping{"VllmDrafts", false, "draft=.6 late=1"},
                    Wrapping{"VllmFarAhead", false, "draft=.5 behind=4 shuffle=1 fork=.05"},
                    Wrapping{"VllmThread", false, "draft=.5 preempt=.03 thread=1 behind=2"},
                    Wrapping{"VllmStreams", false, "stream=.3 draft=.4 rewind=.05 partial=.3"},
                    Wrapping{"VllmSwap", false, "swap=.6 bump=.02"},
                    Wrapping{"MegatronFullHits", true, "full_hit=.7 draft=.4"},
                    Wrapping{"MegatronCompletion", true, "full_hit=.6 completion_seal=1 bump=.02"},
                    Wrapping{"MegatronPreempt", true, "preempt=.05 draft=.4 behind=3 shuffle=1"}),
    [](const testing::TestParamInfo<Wrapping>& wrapping) {
      return std::string(wrapping.param.name);
    });

}  // namespace
}  // namespace waymark::conformance
