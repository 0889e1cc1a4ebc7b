// A fuzz target as an ordinary test: its corpus, every prefix of it, what campaigns have found, and
// mutations of all that by a seed.
//
// WAYMARK_SEED=<n> and WAYMARK_FUZZ_RUNS=<n> choose the mutations; a failure ends the program, and
// the last seed that it printed does it again.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/saved_corpus.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"

namespace waymark::fuzz {
namespace {

void RunBytes(const std::string& input) {
  // In memory of its very size, so that a sanitizer sees the first byte that is read beyond it.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  RunOne(bytes);
}

class Mutator {
 public:
  // Large inputs are left out: they are there for their size.
  Mutator(std::vector<std::string> corpus, std::uint64_t seed)
      : corpus_(std::move(corpus)), random_(seed) {
    std::erase_if(corpus_, [](const std::string& input) { return input.size() > 64 * 1024; });
  }

  std::string Next() {
    std::string bytes = corpus_[Below(corpus_.size())];
    for (std::size_t changes = 1 + Below(6); changes > 0; --changes)
      Change(bytes);
    return bytes;
  }

 private:
  std::size_t Below(std::size_t end) { return random_() % end; }

  void Change(std::string& bytes) {
    if (bytes.empty()) bytes = std::string(1, '\0');
    const std::size_t at = Below(bytes.size());
    const std::size_t length = 1 + Below(std::min<std::size_t>(64, bytes.size() - at));
    switch (Below(7)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random_());
        break;
      case 2: {  // a number at the edge of its type
        constexpr std::uint64_t kEdges[] = {
            0,          1,          0x7f,       0x80,       0xffff,           0x7fffffff,
            0x80000000, 0xffffffff, 1ull << 62, 1ull << 63, ~std::uint64_t{0}};
        const std::uint64_t edge = kEdges[Below(std::size(kEdges))];
        const std::size_t width = std::min<std::size_t>(std::size_t{1} << Below(4),  //
                                                        bytes.size() - at);
        for (std::size_t i = 0; i < width; ++i)
          bytes[at + i] = static_cast<char>(edge >> (8 * i));
        break;
      }
      case 3:
        bytes.erase(at, length);
        break;
      case 4:
        bytes.insert(Below(bytes.size()), bytes.substr(at, length));
        break;
      case 5: {  // a piece of another input
        const std::string& other = corpus_[Below(corpus_.size())];
        const std::size_t from = Below(other.size() + 1);
        bytes.replace(at, length, other.substr(from, 1 + Below(256)));
        break;
      }
      default:
        bytes.resize(at);
        break;
    }
  }

  std::vector<std::string> corpus_;
  std::mt19937_64 random_;
};

TEST(Fuzz, Corpus) {
  for (const std::string& input : Corpus())
    RunBytes(input);
}

TEST(Fuzz, PrefixesOfTheCorpus) {
  for (const std::string& input : Corpus()) {
    // 512 of a small input, fewer of a large one: a megabyte or two in all.
    const std::size_t stride = PlainOr<std::size_t>(1, 5) *
                               (input.size() / 512 + input.size() * input.size() / (2 << 20) + 1);
    for (std::size_t size = 0; size < input.size(); size += stride)
      RunBytes(input.substr(0, size));
  }
}

TEST(Fuzz, SavedCorpus) {
  for (const std::string& input : SavedCorpus())
    RunBytes(input);
}

TEST(Fuzz, Mutations) {
  const std::uint64_t seed = TestSeed();
  const std::uint64_t runs = FromEnvironment("WAYMARK_FUZZ_RUNS", PlainOr(3000, 1000));
  std::cout << "WAYMARK_SEED=" << seed << " WAYMARK_FUZZ_RUNS=" << runs << std::endl;
  std::vector<std::string> corpus = Corpus();
  const std::vector<std::string> saved = SavedCorpus();
  corpus.insert(corpus.end(), saved.begin(), saved.end());
  Mutator mutator(std::move(corpus), seed);
  for (std::uint64_t run = 0; run < runs; ++run)
    RunBytes(mutator.Next());
}

}  // namespace
}  // namespace waymark::fuzz
