// Timeouts that any clock can take.
#ifndef WAYMARK_BLOCKSTORE_TIMEOUT_H_
#define WAYMARK_BLOCKSTORE_TIMEOUT_H_

#include <algorithm>
#include <chrono>

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

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_TIMEOUT_H_
