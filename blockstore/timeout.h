// Timeouts that any clock can take, and the step for which a store's log waits, in their texts.
#ifndef WAYMARK_BLOCKSTORE_TIMEOUT_H_
#define WAYMARK_BLOCKSTORE_TIMEOUT_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace waymark {

inline constexpr std::chrono::hours kLongestTimeout(24 * 365);

// `timeout`, at least 0 and at most kLongestTimeout: its sum with a time of a clock does not
// overflow. Every wait whose length a caller says goes through here.
template <class Rep, class Period>
[[nodiscard]] constexpr std::chrono::duration<Rep, Period> Clamped(
    std::chrono::duration<Rep, Period> timeout) {
  using Duration = std::chrono::duration<Rep, Period>;
  // In the caller's unit, as the conversion into another one may overflow, too.
  return std::clamp(timeout, Duration::zero(),
                    std::chrono::duration_cast<Duration>(kLongestTimeout));
}

// The step at the front of the log that has not ended, or whose ids are not there. Set by the
// landing thread; 0: none waits. Any thread.
struct WaitingStep {
  std::atomic<std::uint64_t> number{0};
  // ": step 7 has no ids yet, and all behind it waits"; empty if none waits.
  [[nodiscard]] std::string ToString() const {
    const std::uint64_t step = number.load(std::memory_order_relaxed);
    if (step == 0) return {};
    return ": step " + std::to_string(step) + " has no ids yet, and all behind it waits";
  }
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_TIMEOUT_H_
