// waymark_schedules: as many random schedules as one likes, or one scenario of one's own.
//
//   waymark_schedules --seed 1 --count 1000000
//   waymark_schedules --seed 17 --count 1 --dump flight.json   # then model/replay.py flight.json
//   waymark_schedules --seed 1 --count 400 --engine megatron --steps 400 draft=.5 drop=.02 late=1
//
// Prints every schedule that fails and, at the end, the sums. Exits 1 if any failed.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "adapters/simulators/engine.h"
#include "tests/conformance/flight_dump.h"
#include "tests/conformance/schedules.h"
#include "tests/support/failing_new.h"

int main(int argc, char** argv) {
  using waymark::FailAllocation;
  using waymark::conformance::DrawSchedule;
  using waymark::conformance::FlightDump;
  using waymark::conformance::Outcome;
  using waymark::conformance::RunSchedule;
  using waymark::conformance::Schedule;
  using waymark::conformance::Totals;
  setenv("WAYMARK_LOG", "off", 0);  // rows are lost on purpose
  CLI::App app("Random schedules of the engine simulators against the store");
  std::uint64_t seed = 1;
  std::uint64_t count = 1000;
  std::int64_t steps = 200;
  std::string engine;
  std::string dump;
  std::vector<std::string> features;
  app.add_option("--seed", seed, "first seed");
  app.add_option("--count", count, "schedules");
  app.add_option("--steps", steps, "steps of each");
  app.add_option("--engine", engine, "only this engine")
      ->check(CLI::IsMember({"vllm", "megatron"}));
  app.add_option("--dump", dump, "write the flight of the first schedule's first stage here");
  app.add_option("features", features, "name=value: these instead of drawn ones");
  CLI11_PARSE(app, argc, argv);

  Totals totals;
  std::uint64_t next_told = 100000;
  for (std::uint64_t i = 0; i < count; ++i) {
    Schedule schedule = DrawSchedule(seed + i);
    if (!features.empty()) {
      schedule.options = {};
      schedule.options.seed = seed + i;
      schedule.features.clear();
      for (const std::string& feature : features) {
        schedule.features += feature + " ";
        if (!SetOptions(schedule.options, feature)) {
          std::fprintf(stderr, "features: no such feature, or no number: %s\n", feature.c_str());
          return 2;
        }
      }
    }
    if (!engine.empty()) {
      schedule.options.megatron = engine == "megatron";
      schedule.features += " (engine " + engine + ")";
    }
    schedule.steps = steps;
    schedule.options.fail_allocation = [](std::uint64_t n) { FailAllocation(n); };
    std::FILE* const file = i > 0 || dump.empty() ? nullptr : std::fopen(dump.c_str(), "w");
    if (file != nullptr) {
      const waymark::StoreOptions store = waymark::sim::StoreOptionsOf(schedule.options, 0);
      const auto flight = std::make_shared<FlightDump>(file, store.shape.row_bytes());
      flight->Header(schedule.features, store);
      schedule.options.flights.assign(static_cast<std::size_t>(schedule.options.stages), nullptr);
      schedule.options.flights[0] = flight;
    }
    const Outcome outcome = RunSchedule(schedule);
    if (file != nullptr) std::fclose(file);
    totals.Add(outcome);
    if (!outcome.clean(schedule)) {
      ++totals.failed;
      std::printf("FAILED %s\n", outcome.Describe(schedule).c_str());
      std::fflush(stdout);
    }
    if (i + 1 == next_told) {
      next_told += 100000;
      std::printf("%s\n", totals.ToString().c_str());
      std::fflush(stdout);
    }
  }
  std::printf("%s\n", totals.ToString().c_str());
  return totals.failed == 0 ? 0 : 1;
}
