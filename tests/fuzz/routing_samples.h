// The golden files of tests/data/formats, as seeds.
#ifndef WAYMARK_TESTS_FUZZ_ROUTING_SAMPLES_H_
#define WAYMARK_TESTS_FUZZ_ROUTING_SAMPLES_H_

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace waymark::fuzz {

// The bytes of each file whose name ends so, in the order of their names. Ends the process where
// there is none.
inline std::vector<std::string> RoutingSamples(const std::vector<std::string>& endings) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(WAYMARK_FORMATS_DATA)) {
    for (const std::string& ending : endings) {
      if (entry.path().extension() == ending) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> samples;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    samples.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  Require(!samples.empty(), "there are golden files");
  return samples;
}

}  // namespace waymark::fuzz

#endif  // WAYMARK_TESTS_FUZZ_ROUTING_SAMPLES_H_
