// How time is measured: single calls, their quantiles, and caches made cold before a call.
//
// Each call is timed on its own and quantiles are reported, because the mean on a machine that
// others use has no meaning. Calls of microseconds are judged by their median. Calls of a
// millisecond and more are seldom left undisturbed on such a machine: they are judged by their
// lower decile, or timed by the thread's processor time, or both. A baseline is timed in turns with
// what it is compared with, in one run.
#ifndef WAYMARK_ADAPTERS_BENCH_MEASURE_H_
#define WAYMARK_ADAPTERS_BENCH_MEASURE_H_

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <vector>

namespace waymark::bench {

// Throws std::runtime_error(what) unless `ok`: a benchmark that measures failures measures nothing.
void Demand(bool ok, const char* what);

// Nanoseconds of single calls.
class Times {
 public:
  explicit Times(std::size_t expected = 0) { nanoseconds_.reserve(expected); }
  void Add(double nanoseconds) { nanoseconds_.push_back(nanoseconds); }
  [[nodiscard]] std::size_t size() const { return nanoseconds_.size(); }
  // The value that `part` of the calls stayed below, in microseconds; 0.5 is the median. 0 without
  // calls.
  [[nodiscard]] double Micros(double part) const;

 private:
  std::vector<double> nanoseconds_;
};

enum class Clock {
  kWall,
  kProcessor,  // of the calling thread; reading it takes some 0.3 us
};

// Nanoseconds since a fixed moment.
[[nodiscard]] inline double Now(Clock clock) {
  std::timespec now{};
  clock_gettime(clock == Clock::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

// Runs `call` and returns how many nanoseconds it took.
template <class Call>
double Time(Call&& call, Clock clock = Clock::kWall) {
  const double begin = Now(clock);
  call();
  return Now(clock) - begin;
}

// The compiler must assume that memory behind `value` is read and written here.
inline void KeepAlive(const void* value) {
  asm volatile("" : : "g"(value) : "memory");
}

// memcpy of the C library, which baselines are. A call with a length that the compiler knows may
// become code of its own: g++ 12 makes 464 bytes a `rep movs`, which takes twice the time.
void Copy(void* to, const void* from, std::size_t bytes);

// What the caches hold when a timed call begins.
enum class Caches {
  kWarm,     // what the previous call left there
  kColdOwn,  // nothing of the store in the core's own caches; the last-level cache is left alone
  kCold,     // nothing of anything: data, code and translations come from memory
};

// Walks a buffer: four times the second-level cache, or twice the last-level cache.
class CacheWalk {
 public:
  CacheWalk();
  void Make(Caches caches);

 private:
  std::size_t own_ = 0;                // elements that flush the core's own caches
  std::size_t last_ = 0;               // elements that flush the last-level cache too
  std::vector<std::uint64_t> buffer_;  // grows to what Make() was asked for
  std::uint64_t sum_ = 0;
};

}  // namespace waymark::bench

#endif  // WAYMARK_ADAPTERS_BENCH_MEASURE_H_
