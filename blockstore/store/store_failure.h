// StoreFailure: why a store has failed, if it has. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_STORE_FAILURE_H_
#define WAYMARK_BLOCKSTORE_STORE_STORE_FAILURE_H_

#include <atomic>

#include "absl/status/status.h"

namespace waymark {

// A store has failed when an exception of its own work was caught: no memory, as a rule. Its tables
// may be half changed, so from then on they are not used. Any thread.
class StoreFailure {
 public:
  [[nodiscard]] bool failed() const { return state_.load(std::memory_order_acquire) != kNone; }
  // The store has failed by the exception that is being handled; `doing` (static) is what threw it.
  // Only the first one is kept. Neither allocates nor throws. REQUIRES: within a catch block.
  void Catch(const char* doing) noexcept;
  // OK unless failed(). ResourceExhausted if there was no memory, else Internal; the message names
  // what was being done, and the exception. Allocates.
  [[nodiscard]] absl::Status status() const;
  // The message; empty unless failed().
  [[nodiscard]] const char* text() const;

 private:
  enum State : int { kNone, kSetting, kSet };
  std::atomic<int> state_{kNone};
  bool no_memory_ = false;
  char text_[160] = {};
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_FAILURE_H_
