// The store against its executable specification: flights of random schedules, recorded and
// replayed in Python, must read the same. WAYMARK_DIFFERENTIAL (default 300) schedules from
// WAYMARK_SEED on.
//
// Enough pages and no audit: with few pages the choice among equally old pages is free.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/conformance/flight_dump.h"
#include "tests/conformance/schedules.h"
#include "tests/support/sanitizers.h"

namespace waymark::conformance {
namespace {

TEST(Differential, TheSpecificationReadsTheSame) {
  if (std::system("python3 -c 'import json' > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "python3 is not there";
  }
  const std::string path = testing::TempDir() + "/waymark_flights.jsonl";
  std::FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr) << path;
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const std::uint64_t count = FromEnvironment("WAYMARK_DIFFERENTIAL", PlainOr(300, 100));
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Schedule schedule = DrawSchedule(seed);
    sim::EngineOptions& options = schedule.options;
    options.stages = 1;
    options.max_pages = 0;
    options.audit = false;
    options.timing.landing = Landing::kCaller;
    options.max_steps_in_flight = 256;
    const StoreOptions store = StoreOptionsOf(options, 0);
    FlightDump dump(file, store.shape.row_bytes());
    dump.Header("seed " + std::to_string(seed) + ": " + schedule.features, store);
    options.flights = {&dump};
    const Outcome outcome = RunSchedule(schedule);
    EXPECT_EQ(outcome.checks.wrong + outcome.checks.unexplained, 0) << outcome.Describe(schedule);
  }
  ASSERT_EQ(std::fclose(file), 0);
  const std::string command =
      std::string("python3 '") + WAYMARK_MODEL_DIR + "/replay.py' '" + path + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  if (!HasFailure()) std::remove(path.c_str());
}

}  // namespace
}  // namespace waymark::conformance
