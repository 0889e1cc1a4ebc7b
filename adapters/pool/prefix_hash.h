// PrefixHash: the hash of a token prefix, on which a token's KV depends. The embedded engine and
// the simulators make the keys of their blocks of it.
#ifndef WAYMARK_ADAPTERS_POOL_PREFIX_HASH_H_
#define WAYMARK_ADAPTERS_POOL_PREFIX_HASH_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "blockstore/events.h"

namespace waymark {

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

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_POOL_PREFIX_HASH_H_
