#include "blockstore/digest.h"

#include <cstddef>
#include <cstring>

// The hash is on the step path (one call a sealed page): let the compiler see it whole.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace waymark {
namespace {

// One little-endian field; returns where the next one goes.
template <class T>
std::uint8_t* Put(std::uint8_t* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    *at++ = static_cast<std::uint8_t>(value >> (8 * i));
  }
  return at;
}

}  // namespace

Digest128 IndexDigest(std::uint64_t seed, std::uint64_t version, std::uint32_t ordinal,
                      const BlockKey& key) {
  std::uint8_t input[8 + 4 + 1 + BlockKey::kMaxBytes];
  std::uint8_t* at = Put(Put(input, version), ordinal);
  *at++ = key.size;
  std::memcpy(at, key.bytes.data(), key.size);
  const auto length = static_cast<std::size_t>(at - input) + key.size;
  const XXH128_hash_t hash = XXH3_128bits_withSeed(input, length, seed);
  return {{static_cast<std::uint32_t>(hash.low64), static_cast<std::uint32_t>(hash.low64 >> 32),
           static_cast<std::uint32_t>(hash.high64), static_cast<std::uint32_t>(hash.high64 >> 32)}};
}

std::uint64_t RowDigest(std::span<const std::uint8_t> row) {
  return XXH3_64bits(row.data(), row.size());
}

}  // namespace waymark
