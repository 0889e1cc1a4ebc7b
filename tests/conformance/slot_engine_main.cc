// waymark_slot_engine: as many engines that know what is in each slot (slot_engine.h) as one likes.
//
//   waymark_slot_engine --seed 1 --count 40000
//   waymark_slot_engine --seed 1 --count 40000 audit=0 cancel=0
//
// Prints every seed that fails and, at the end, the sums. Exits 1 if any failed.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/conformance/slot_engine.h"

int main(int argc, char** argv) {
  using waymark::conformance::RunSlotEngine;
  using waymark::conformance::SlotCounts;
  using waymark::conformance::SlotFeatures;
  setenv("WAYMARK_LOG", "off", 0);  // rows are lost on purpose
  CLI::App app("Small engines with an oracle of what is in each slot, against the store");
  std::uint64_t seed = 1;
  std::uint64_t count = 1000;
  std::vector<std::string> words;
  app.add_option("--seed", seed, "first seed");
  app.add_option("--count", count, "engines");
  app.add_option("features", words, "name=0 or name=1: whether a seed may draw this feature");
  CLI11_PARSE(app, argc, argv);
  SlotFeatures features;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if ((value != "0" && value != "1") || !features.Set(word.substr(0, equals), value == "1")) {
      std::fprintf(stderr, "%s: not a feature with =0 or =1; there are: %s\n", word.c_str(),
                   SlotFeatures::Names().c_str());
      return 2;
    }
  }
  SlotCounts all;
  std::uint64_t failed = 0;
  for (std::uint64_t at = seed; at < seed + count; ++at) {
    const SlotCounts counts = RunSlotEngine(at, features);
    all.Add(counts);
    if (counts.clean()) continue;
    ++failed;
    std::printf("FAILED seed %llu (%s): %s\n", static_cast<unsigned long long>(at),
                counts.features.c_str(), counts.ToString().c_str());
    std::fflush(stdout);
  }
  std::printf("%llu engines, %llu failed: %s\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(failed), all.ToString().c_str());
  return failed == 0 ? 0 : 1;
}
