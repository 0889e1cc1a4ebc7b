// Counts what the test program allocates: operator new of the whole program, linked with
// counting_new.cc.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_COUNTING_NEW_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_COUNTING_NEW_H_

#include <cstdint>

namespace waymark {

// Calls of operator new since the program began, by all threads.
[[nodiscard]] std::uint64_t AllocationCount();

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_COUNTING_NEW_H_
