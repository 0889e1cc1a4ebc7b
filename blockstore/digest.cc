#include "blockstore/digest.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <xxhash.h>  // XXH_INLINE_ALL: the hash is on the step path

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
  constexpr std::size_t kHead = 8 + 4 + 1;
  std::uint8_t input[64] = {};
  static_assert(kHead + BlockKey::kMaxBytes <= sizeof(input));
  *Put(Put(input, version), ordinal) = key.size;
  std::memcpy(input + kHead, key.bytes.data(), BlockKey::kMaxBytes);
  const std::size_t length = kHead + std::min<std::size_t>(key.size, BlockKey::kMaxBytes);
  const XXH128_hash_t hash = XXH3_128bits_withSeed(input, length, seed);
  return {{static_cast<std::uint32_t>(hash.low64), static_cast<std::uint32_t>(hash.low64 >> 32),
           static_cast<std::uint32_t>(hash.high64), static_cast<std::uint32_t>(hash.high64 >> 32)}};
}

std::uint64_t RowDigest(std::span<const std::uint8_t> row) {
  return XXH3_64bits(row.data(), row.size());
}

}  // namespace waymark
