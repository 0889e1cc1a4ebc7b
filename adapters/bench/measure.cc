#include "adapters/bench/measure.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace waymark::bench {

void Demand(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

double Times::Micros(double part) const {
  if (nanoseconds_.empty()) return 0;
  std::vector<double> sorted = nanoseconds_;
  const auto at = static_cast<std::ptrdiff_t>(part * static_cast<double>(sorted.size() - 1));
  std::nth_element(sorted.begin(), sorted.begin() + at, sorted.end());
  return sorted[static_cast<std::size_t>(at)] / 1000;
}

void Copy(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

CacheWalk::CacheWalk() {
  const auto reported = [](int name, std::size_t otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : otherwise;
  };
  const std::size_t last = reported(_SC_LEVEL3_CACHE_SIZE, std::size_t{32} << 20);
  const std::size_t second = reported(_SC_LEVEL2_CACHE_SIZE, std::size_t{1} << 20);
  own_ = 4 * second / sizeof(std::uint64_t);
  last_ = 2 * std::max(last, 4 * second) / sizeof(std::uint64_t);
}

void CacheWalk::Make(Caches caches) {
  if (caches == Caches::kWarm) return;
  constexpr std::size_t kLine = 8;
  const std::size_t end = caches == Caches::kCold ? last_ : own_;
  if (buffer_.size() < end) buffer_.resize(end, 1);
  for (std::size_t i = 0; i < end; i += kLine)
    sum_ += buffer_[i]++;
  KeepAlive(&sum_);
}

}  // namespace waymark::bench
