// Rng: a small seeded generator.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_HASH_H_
#define WAYMARK_ADAPTERS_SIMULATORS_HASH_H_

#include <cstdint>

#include "adapters/pool/prefix_hash.h"

namespace waymark::sim {

using waymark::Mix;
using waymark::PrefixHash;

// A random generator. The same seed gives the same numbers on every machine, unlike the
// distributions of <random>.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(Mix(seed, 0x2545f4914f6cdd1du)) {}

  std::uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15u;
    return Mix(state_, state_ >> 32);
  }
  // A number in [0, bound); 0 for a bound of 0.
  std::int64_t Below(std::int64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::int64_t>((static_cast<Wide>(Next()) * static_cast<Wide>(bound)) >> 64);
  }
  // A number in [low, high).
  std::int64_t Between(std::int64_t low, std::int64_t high) { return low + Below(high - low); }
  // True with this probability. Draws no number if it is 0.
  bool Chance(double probability) {
    return probability > 0 && static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }

 private:
  std::uint64_t state_;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_HASH_H_
