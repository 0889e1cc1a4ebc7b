// Counts the allocations of a thread, by replacing operator new for the whole program.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_FLIGHT_COUNTING_NEW_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_FLIGHT_COUNTING_NEW_H_

namespace waymark {

// Begins counting those of the calling thread, from 0.
void CountAllocations();
// Ends counting, and says how many there were.
int AllocationsCounted();

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_FLIGHT_COUNTING_NEW_H_
