// The store against its executable specification: flights of random schedules, recorded and
// replayed in Python, must read the same. WAYMARK_DIFFERENTIAL (default 300) schedules from
// WAYMARK_SEED on.
//
// Enough pages and no audit: with few pages the choice among equally old pages is free.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "tests/conformance/flight_dump.h"
#include "tests/conformance/random_records.h"
#include "tests/conformance/schedules.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"

namespace waymark::conformance {
namespace {

bool HasPython() {
  return std::system("python3 -c 'import json' > /dev/null 2>&1") == 0;
}

// Writes the flights of seeds [first, first + count) with `fly`, and replays them in Python.
// `mutations`: again with each rule of the specification switched off, which must be noticed.
void Compare(const char* name, std::uint64_t first, std::uint64_t count, bool mutations,
             const std::function<void(std::uint64_t, std::FILE*)>& fly) {
  const std::string path = testing::TempDir() + "/waymark_" + name + ".jsonl";
  std::FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr) << path;
  for (std::uint64_t seed = first; seed < first + count; ++seed)
    fly(seed, file);
  ASSERT_EQ(std::fclose(file), 0);
  const std::string command =
      std::string("python3 '") + WAYMARK_MODEL_DIR + "/replay.py' '" + path + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  if (mutations) {
    EXPECT_EQ(std::system((command + " --mutations").c_str()), 0) << command;
  }
  if (!testing::Test::HasFailure()) std::remove(path.c_str());
}

TEST(Differential, TheSpecificationReadsTheSame) {
  if (!HasPython()) GTEST_SKIP() << "python3 is not there";
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const std::uint64_t count = FromEnvironment("WAYMARK_DIFFERENTIAL", PlainOr(300, 100));
  Compare("flights", first, count, false, [](std::uint64_t seed, std::FILE* file) {
    Schedule schedule = DrawSchedule(seed);
    sim::EngineOptions& options = schedule.options;
    options.stages = 1;
    options.max_pages = 0;
    options.audit = false;
    options.timing.landing = Landing::kCaller;
    options.max_steps_in_flight = 256;
    const StoreOptions store = StoreOptionsOf(options, 0);
    const auto dump = std::make_shared<FlightDump>(file, store.shape.row_bytes());
    dump->Header("seed " + std::to_string(seed) + ": " + schedule.features, store);
    options.flights = {dump};
    const Outcome outcome = RunSchedule(schedule);
    EXPECT_EQ(outcome.checks.wrong + outcome.checks.unexplained, 0) << outcome.Describe(schedule);
  });
}

// Records in any order that the interface allows: events outside batches, snapshots between them,
// schedules that are given up, steps that are dropped at their begin, lost records.
TEST(Differential, TheSpecificationReadsTheSameOfRandomRecords) {
  if (!HasPython()) GTEST_SKIP() << "python3 is not there";
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const std::uint64_t count = FromEnvironment("WAYMARK_DIFFERENTIAL", PlainOr(1000, 300));
  Compare("records", first, count, count >= 1000, [](std::uint64_t seed, std::FILE* file) {
    // The rows are random, so that an audit voids what it compares.
    const StoreOptions options = RecordsOptions(seed, /*audit=*/seed % 3 == 0);
    const auto dump = std::make_shared<FlightDump>(file, options.shape.row_bytes());
    dump->Header("records of seed " + std::to_string(seed), options);
    RecordsHooks hooks;
    hooks.audit = options.audit;
    hooks.sink = dump;
    (void)RunRecords(seed, Reporting::kMixed, hooks);
  });
}

// A batch is its version, its events one by one, and its begin.
TEST(Metamorphic, ABatchIsItsRecordsOneByOne) {
  const std::uint64_t first = FromEnvironment("WAYMARK_SEED", 1);
  const std::uint64_t count = FromEnvironment("WAYMARK_DIFFERENTIAL", PlainOr(1000, 300));
  std::size_t texts = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const std::vector<std::string> batches = RunRecords(seed, Reporting::kBatches);
    texts += batches.size();
    ASSERT_EQ(RunRecords(seed, Reporting::kOneByOne), batches) << "seed " << seed;
  }
  EXPECT_GT(texts, 10 * count);
}

}  // namespace
}  // namespace waymark::conformance
