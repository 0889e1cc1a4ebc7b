// Makes an allocation of the test program fail: operator new of the whole program, linked with
// failing_new.cc.
#ifndef WAYMARK_TESTS_SUPPORT_FAILING_NEW_H_
#define WAYMARK_TESTS_SUPPORT_FAILING_NEW_H_

#include <cstdint>

namespace waymark {

// From now on the n-th (1, 2, ...) call of operator new, by any thread, throws std::bad_alloc; if
// `and_all_after`, all later ones do, too. 0: none.
void FailAllocation(std::uint64_t n, bool and_all_after = false);
// Calls of operator new since FailAllocation.
[[nodiscard]] std::uint64_t AllocationsSeen();

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_FAILING_NEW_H_
