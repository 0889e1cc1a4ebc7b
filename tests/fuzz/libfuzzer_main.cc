// A fuzz target under libFuzzer. The built-in corpus and the saved one are written into the first
// folder of the command line, where libFuzzer looks for them; unless it merges into that folder.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/saved_corpus.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  setenv("WAYMARK_LOG", "off", 0);
  const std::vector<std::string> arguments(*argv + 1, *argv + *argc);
  for (const std::string& argument : arguments) {
    if (argument.starts_with("-merge")) return 0;
  }
  for (const std::string& folder : arguments) {
    if (folder[0] == '-') continue;
    // Not a folder, but an input to be run again: nothing is written.
    const auto write = [&folder](const char* name, const std::vector<std::string>& inputs) {
      for (std::size_t n = 0; n < inputs.size(); ++n)
        std::ofstream(folder + name + std::to_string(n), std::ios::binary) << inputs[n];
    };
    write("/built_in_", waymark::fuzz::Corpus());
    write("/saved_", waymark::fuzz::SavedCorpus());
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  waymark::fuzz::RunOne({data, size});
  return 0;
}
