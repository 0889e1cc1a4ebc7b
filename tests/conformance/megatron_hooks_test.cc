// A Megatron-like engine that leaves out one call of its adapter: each is noticed.
#include <gtest/gtest.h>

#include <string>

#include "tests/conformance/schedules.h"

namespace waymark::conformance {
namespace {

using sim::MegatronHook;

struct LeftOut {
  const char* name;
  MegatronHook hook;
  const char* features;
};
std::ostream& operator<<(std::ostream& out, const LeftOut& left_out) {
  return out << left_out.name;
}

class MegatronHooks : public testing::TestWithParam<LeftOut> {
 protected:
  // The sum of a few schedules, with this call left out.
  static Totals Run(MegatronHook hook) {
    Totals totals;
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      Schedule schedule;
      schedule.options.seed = seed;
      schedule.options.megatron = true;
      schedule.options.left_out = hook;
      schedule.features = GetParam().features;
      EXPECT_TRUE(SetOptions(schedule.options, schedule.features));
      const Outcome outcome = RunSchedule(schedule);
      EXPECT_TRUE(outcome.adapter);
      totals.Add(outcome);
      if (outcome.clean(schedule)) continue;
      ++totals.failed;
      if (hook == MegatronHook::kNone) ADD_FAILURE() << outcome.Describe(schedule);
    }
    return totals;
  }
};

TEST_P(MegatronHooks, AreNeeded) {
  const Totals all = Run(MegatronHook::kNone);
  const Totals without = Run(GetParam().hook);
  constexpr auto kCapacity = static_cast<std::size_t>(Reason::kCapacity);
  switch (GetParam().hook) {
    case MegatronHook::kRelease:
      // No row is wrong: pages stay with blocks that nobody uses, and are short elsewhere.
      EXPECT_EQ(without.failed, 0);
      EXPECT_GT(without.checks.missing[kCapacity], 2 * all.checks.missing[kCapacity]);
      break;
    case MegatronHook::kReset:
      // No row is wrong: prefixes that the engine has forgotten are found.
      EXPECT_EQ(without.failed, 0);
      EXPECT_GT(without.checks.by_key, 2 * all.checks.by_key);
      break;
    default:
      EXPECT_EQ(without.failed, without.schedules);
  }
}

constexpr const char* kFewPages = "max_pages=16 preempt=.1 full_hit=.4";
INSTANTIATE_TEST_SUITE_P(
    Each, MegatronHooks,
    testing::Values(LeftOut{"Allocate", MegatronHook::kAllocate, "draft=.4"},
                    LeftOut{"Match", MegatronHook::kMatch, kFewPages},
                    LeftOut{"Release", MegatronHook::kRelease, kFewPages},
                    LeftOut{"Register", MegatronHook::kRegister, "full_hit=.6 draft=.4"},
                    LeftOut{"Reset", MegatronHook::kReset, "reset=.05 tier=.9 preempt=.1"},
                    LeftOut{"Checkpoint", MegatronHook::kCheckpoint, "preempt=.2 abort=.02"},
                    LeftOut{"Other", MegatronHook::kOther, "fork=.3 partial=.4"}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace waymark::conformance
