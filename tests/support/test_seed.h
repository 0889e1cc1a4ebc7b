// Numbers from the environment, and the seeds of random tests.
#ifndef WAYMARK_TESTS_SUPPORT_TEST_SEED_H_
#define WAYMARK_TESTS_SUPPORT_TEST_SEED_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace waymark {

// Unsigned number from the environment; `otherwise` where it is not set.
inline std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 0);
}

// WAYMARK_SEED, else a constant. Print it (SCOPED_TRACE) where it is used.
inline std::uint64_t TestSeed() {
  return FromEnvironment("WAYMARK_SEED", 20240229);
}

// Random numbers from TestSeed(), plus a number of the test's own. While it lives, failures name the
// seed.
class TestRandom : public std::mt19937_64 {
 public:
  explicit TestRandom(std::uint64_t plus = 0)
      : std::mt19937_64(TestSeed() + plus),
        trace_(__FILE__, __LINE__, "WAYMARK_SEED=" + std::to_string(TestSeed())) {}

 private:
  const ::testing::ScopedTrace trace_;
};

// WAYMARK_SEED, else another one in each run. Prints it.
inline std::uint64_t DrawnSeed() {
  const std::uint64_t seed = FromEnvironment("WAYMARK_SEED", std::random_device{}());
  std::cout << "WAYMARK_SEED=" << seed << "\n";
  return seed;
}

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_TEST_SEED_H_
