// SteadyNow: the time at which something was reported, applied or landed. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_CLOCK_H_
#define WAYMARK_BLOCKSTORE_STORE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace waymark {

// Nanoseconds of the steady clock.
inline std::uint64_t SteadyNow() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_CLOCK_H_
