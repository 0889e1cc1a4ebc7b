// The seed of random tests: WAYMARK_SEED, else a constant. Print it (SCOPED_TRACE) where it is
// used.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_TEST_SEED_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_TEST_SEED_H_

#include <cstdint>
#include <cstdlib>

namespace waymark {

inline std::uint64_t TestSeed() {
  const char* text = std::getenv("WAYMARK_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : 20240229;
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_TEST_SEED_H_
