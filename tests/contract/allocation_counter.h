// Counts what this thread allocates. A program that uses it links allocation_counter.cc, which
// replaces the global operator new.
#ifndef WAYMARK_TESTS_CONTRACT_ALLOCATION_COUNTER_H_
#define WAYMARK_TESTS_CONTRACT_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace waymark {

// Calls of operator new and delete on this thread since it started.
[[nodiscard]] std::uint64_t AllocationsOfThisThread();

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_ALLOCATION_COUNTER_H_
