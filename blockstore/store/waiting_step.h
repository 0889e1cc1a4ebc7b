// WaitingStep: the step for which a store's log waits, in the texts of timeouts.
#ifndef WAYMARK_BLOCKSTORE_STORE_WAITING_STEP_H_
#define WAYMARK_BLOCKSTORE_STORE_WAITING_STEP_H_

#include <atomic>
#include <cstdint>
#include <string>

namespace waymark {

// Set by the landing thread. Any thread.
class WaitingStep {
 public:
  // The step at the front of the log has not ended, or its ids are not there; 0: none waits.
  void Set(std::uint64_t step) { step_.store(step, std::memory_order_relaxed); }
  // ": step 7 has no ids yet, and all behind it waits"; empty if none waits.
  [[nodiscard]] std::string ToString() const {
    const std::uint64_t step = step_.load(std::memory_order_relaxed);
    if (step == 0) return {};
    return ": step " + std::to_string(step) + " has no ids yet, and all behind it waits";
  }

 private:
  std::atomic<std::uint64_t> step_{0};
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_WAITING_STEP_H_
