#include "blockstore/digest.h"

#include <algorithm>
#include <cstddef>
#include <random>

#include "blockstore/byte_io.h"

#include <xxhash.h>  // XXH_INLINE_ALL: the hash is on the step path

namespace waymark {
namespace {

Digest128 FromHash(const XXH128_hash_t& hash) {
  return {{static_cast<std::uint32_t>(hash.low64), static_cast<std::uint32_t>(hash.low64 >> 32),
           static_cast<std::uint32_t>(hash.high64), static_cast<std::uint32_t>(hash.high64 >> 32)}};
}

}  // namespace

std::uint64_t DrawSeed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device() | 1;
}

Digest128 IndexKey(std::uint64_t seed, std::uint64_t version, std::uint32_t ordinal,
                   const BlockKey& key) {
  constexpr std::size_t kHead = 8 + 4 + 1;
  std::uint8_t input[64] = {};
  static_assert(kHead + BlockKey::kMaxBytes <= sizeof(input));
  RawWriter writer(input);
  writer.Put(version);
  writer.Put(ordinal);
  writer.Put(key.size);
  writer.PutBytes(key.bytes.data(), BlockKey::kMaxBytes);
  const std::size_t length = kHead + std::min<std::size_t>(key.size, BlockKey::kMaxBytes);
  return FromHash(XXH3_128bits_withSeed(input, length, seed));
}

std::uint64_t RowDigest(std::span<const std::uint8_t> row) {
  return XXH3_64bits(row.data(), row.size());
}

Digest128 ContentDigest(std::span<const std::uint8_t> front, std::span<const std::uint8_t> bytes) {
  if (front.empty()) return FromHash(XXH3_128bits(bytes.data(), bytes.size()));
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, front.data(), front.size());
  XXH3_128bits_update(&state, bytes.data(), bytes.size());
  return FromHash(XXH3_128bits_digest(&state));
}

}  // namespace waymark
