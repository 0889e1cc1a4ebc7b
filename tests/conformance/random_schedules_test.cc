// Random schedules of both engine simulators: nothing wrong, nothing unexplained.
//
// WAYMARK_SCHEDULES (default 10000) schedules from seed WAYMARK_SEED (default 1) on; the test
// prints seed and features of each that fails. For longer runs: waymark_schedules.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/conformance/schedules.h"

namespace waymark::conformance {
namespace {

TEST(RandomSchedules, NothingWrongNothingUnexplained) {
  const std::uint64_t count = FromEnvironment("WAYMARK_SCHEDULES", 10000);
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  Totals totals;
  for (std::uint64_t seed = first; seed < first + count && totals.failed < 5; ++seed) {
    const Schedule schedule = DrawSchedule(seed);
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

}  // namespace
}  // namespace waymark::conformance
