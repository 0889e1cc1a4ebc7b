// TicketState: how far a snapshot's ticket is. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_TICKET_STATE_H_
#define WAYMARK_BLOCKSTORE_STORE_TICKET_STATE_H_

#include <atomic>
#include <cstdint>

#include "blockstore/store/std_atomics.h"

namespace waymark {

// A ticket is taken when its snapshot is requested, applied when its record in the log is, and
// released when the reader has no more use for it. The last two happen once each, in any order, in
// any threads; the second of them recycles the ticket.
//
//   new, recycled --Take--> taken --Apply----> applied  --Release (true)--> recycle
//                              `----Release--> released --Apply (true)----> recycle
template <class Atomics = StdAtomics>
class BasicTicketState {
 public:
  // The engine's thread, before it appends the ticket's record to the log. REQUIRES: the ticket is
  // new, or was recycled and has come back to the engine's thread.
  void Take() { state_.store(kTaken, std::memory_order_relaxed); }

  // The applying thread, after it has written the ticket's pages. True if the ticket was released
  // before: the caller recycles it.
  [[nodiscard]] bool Apply() {
    return (state_.fetch_or(kApplied, std::memory_order_acq_rel) & kReleased) != 0;
  }

  // Any thread, once, when nothing reads the ticket any more. True if the ticket was applied
  // before: the caller recycles it.
  [[nodiscard]] bool Release() {
    return (state_.fetch_or(kReleased, std::memory_order_acq_rel) & kApplied) != 0;
  }

  // Any thread between Take and its Release. Acquire: if true, the ticket's pages can be read.
  [[nodiscard]] bool applied() const {
    return (state_.load(std::memory_order_acquire) & kApplied) != 0;
  }
  // Whether the ticket was released: the applying thread need not write its pages then, but still
  // calls Apply, which orders what the ticket's reader did before.
  [[nodiscard]] bool released() const {
    return (state_.load(std::memory_order_relaxed) & kReleased) != 0;
  }

 private:
  static constexpr std::uint32_t kTaken = 1;
  static constexpr std::uint32_t kApplied = 2;
  static constexpr std::uint32_t kReleased = 4;

  typename Atomics::template Atomic<std::uint32_t> state_{0};
};

using TicketState = BasicTicketState<>;

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_TICKET_STATE_H_
