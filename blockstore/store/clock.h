// Ticks: how long records wait, measured without cost on the engine's thread. Internal to
// blockstore.
//
// The steady clock of the C library touches about ten pages (two libraries, their tables, the
// kernel's page of time), which are cold after a forward: more than all else that a step does. So
// the engine's thread only reads the processor's counter of cycles, and the thread that applies the
// record converts the difference.
#ifndef WAYMARK_BLOCKSTORE_STORE_CLOCK_H_
#define WAYMARK_BLOCKSTORE_STORE_CLOCK_H_

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace waymark {

// Nanoseconds of the steady clock.
inline std::uint64_t SteadyNow() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// A number that grows at a constant rate: on x86-64 the time stamp counter, which has one rate on
// all cores of processors since about 2008; elsewhere SteadyNow().
inline std::uint64_t TicksNow() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return SteadyNow();
#endif
}

// Converts ticks to nanoseconds, by what both clocks have counted since it was made. One thread.
class TickRate {
 public:
  TickRate() : steady_(SteadyNow()), ticks_(TicksNow()) {}

  // The nanoseconds from `earlier`, which is a TicksNow(), to now. 0 if it seems to be later, as
  // the counters of two sockets may differ by some nanoseconds.
  [[nodiscard]] std::uint64_t NanosecondsSince(std::uint64_t earlier) const {
    const std::uint64_t now = TicksNow();
    if (now <= earlier || now <= ticks_) return 0;
    const double rate =
        static_cast<double>(SteadyNow() - steady_) / static_cast<double>(now - ticks_);
    return static_cast<std::uint64_t>(static_cast<double>(now - earlier) * rate);
  }

 private:
  std::uint64_t steady_;
  std::uint64_t ticks_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_CLOCK_H_
