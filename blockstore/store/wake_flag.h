// WakeFlag: whether the consumer of the log sleeps, so that the producer wakes it only then.
// Internal to blockstore.
//
//   producer:  ring.Publish();
//              if (flag.ShouldWake()) semaphore.Post();
//   consumer:  flag.Announce();
//              if (nothing before ring.LoadTail()) semaphore.Wait();
//              flag.Withdraw();
//
// No wake is lost: of a publication and an announcement, one is first, so either the producer sees
// the flag or the consumer sees the record. The wake must stay pending if it comes before the wait
// (a semaphore, or a condition variable with a predicate). It may come although the consumer found
// the record itself: the next wait can then return early.
#ifndef WAYMARK_BLOCKSTORE_STORE_WAKE_FLAG_H_
#define WAYMARK_BLOCKSTORE_STORE_WAKE_FLAG_H_

#include <atomic>
#include <cstdint>

#include "blockstore/store/std_atomics.h"

namespace waymark {

// One consumer, any number of producers. Has a 128-byte line of its own.
template <class Atomics = StdAtomics>
class alignas(128) BasicWakeFlag {
 public:
  // After the producer has published. True: the caller must wake the consumer; one call for each
  // announcement. A full fence and a load if the consumer does not sleep.
  [[nodiscard]] bool ShouldWake() {
    Atomics::Fence();
    if (asleep_.load(std::memory_order_relaxed) == 0) return false;
    return asleep_.exchange(0, std::memory_order_relaxed) != 0;
  }

  // Before the consumer waits. It must then look for records once more, and wait only if there are
  // none.
  void Announce() {
    asleep_.store(1, std::memory_order_relaxed);
    Atomics::Fence();
  }

  // When the consumer does not wait, or no longer.
  void Withdraw() { asleep_.store(0, std::memory_order_relaxed); }

 private:
  typename Atomics::template Atomic<std::uint32_t> asleep_{0};
};

using WakeFlag = BasicWakeFlag<>;

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_WAKE_FLAG_H_
