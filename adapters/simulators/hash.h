// PrefixHash: the hash of a token prefix, on which a token's KV depends; and Rng, a small seeded
// generator.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_HASH_H_
#define WAYMARK_ADAPTERS_SIMULATORS_HASH_H_

#include <cstdint>
#include <utility>

#include "blockstore/events.h"

namespace waymark::sim {

// Mixes two words: the high and low half of their 128-bit product, xored. Every bit of the result
// depends on every bit of both.
[[nodiscard]] inline std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xd1b54a32d192ed03u);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// The hash of a token prefix, 128 bits, so that different prefixes do not collide. A value.
struct PrefixHash {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;

  // The hash of the prefix with one more token.
  [[nodiscard]] PrefixHash Extend(std::uint64_t token) const {
    return {Mix(lo, token), Mix(hi + 0xa0761d6478bd642fu, token ^ lo)};
  }
  // The engine's key of a full block that ends with this prefix.
  [[nodiscard]] BlockKey ToKey() const {
    BlockKey key;
    for (int i = 0; i < 8; ++i) {
      key.bytes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(lo >> (8 * i));
      key.bytes[static_cast<std::size_t>(i) + 8] = static_cast<std::uint8_t>(hi >> (8 * i));
    }
    key.size = 16;
    return key;
  }
  // A key under which no block is ever sealed.
  [[nodiscard]] BlockKey ToUnknownKey() const {
    BlockKey key = ToKey();
    key.bytes[16] = 1;
    key.size = 17;
    return key;
  }

  friend bool operator==(const PrefixHash&, const PrefixHash&) = default;
  template <class H>
  friend H AbslHashValue(H state, const PrefixHash& hash) {
    return H::combine(std::move(state), hash.lo);
  }
};

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
