// The inputs that a campaign found worth keeping: tests/data/fuzz/<target>.corpus, which
// pack_corpus.py writes. Of each input its size (4 bytes, little-endian) and its bytes.
#ifndef WAYMARK_TESTS_FUZZ_SAVED_CORPUS_H_
#define WAYMARK_TESTS_FUZZ_SAVED_CORPUS_H_

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace waymark::fuzz {

// Ends the process where there is none, or it is cut off.
inline std::vector<std::string> SavedCorpus() {
  std::ifstream file(WAYMARK_SAVED_CORPUS, std::ios::binary);
  const std::string packed{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::string> inputs;
  for (std::size_t at = 0; at < packed.size();) {
    std::size_t size = 0;
    Require(packed.size() - at >= 4, "a saved corpus has a size before each input");
    for (std::size_t i = 0; i < 4; ++i)
      size |= std::size_t{static_cast<std::uint8_t>(packed[at + i])} << 8 * i;
    at += 4;
    Require(packed.size() - at >= size, "a saved corpus is all there");
    inputs.push_back(packed.substr(at, size));
    at += size;
  }
  Require(!inputs.empty(), "there is a saved corpus");
  return inputs;
}

}  // namespace waymark::fuzz

#endif  // WAYMARK_TESTS_FUZZ_SAVED_CORPUS_H_
