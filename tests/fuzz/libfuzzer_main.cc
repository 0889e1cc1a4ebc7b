// A fuzz target under libFuzzer. The built-in corpus is written into the first folder of the
// command line, where libFuzzer looks for it.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string folder = (*argv)[i];
    if (folder[0] == '-') continue;
    const std::vector<std::string> corpus = waymark::fuzz::Corpus();
    for (std::size_t n = 0; n < corpus.size(); ++n) {
      // Not a folder, but an input to be run again: nothing is written.
      std::ofstream(folder + "/built_in_" + std::to_string(n), std::ios::binary) << corpus[n];
    }
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  waymark::fuzz::RunOne({data, size});
  return 0;
}
