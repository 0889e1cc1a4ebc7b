// Digests: the hashes the store goes by: for the places of the key index, for rows, and for bytes
// that are known by what they say.
//
// Neither resists an attacker who knows the seed; both are stable over builds and platforms (XXH3).
#ifndef WAYMARK_BLOCKSTORE_DIGEST_H_
#define WAYMARK_BLOCKSTORE_DIGEST_H_

#include <cstdint>
#include <span>

#include "blockstore/events.h"

namespace waymark {

// 128 bits, as four words of 32: w[0] holds the lowest. Compares by value.
struct Digest128 {
  std::uint32_t w[4] = {0, 0, 0, 0};

  friend bool operator==(const Digest128&, const Digest128&) = default;
};

// The place of page `ordinal` of a block known by `key`, under `version`: XXH3-128 with `seed` of
// version (uint64), ordinal (uint32), key size (uint8), key bytes; all little-endian. Any thread.
[[nodiscard]] Digest128 IndexDigest(std::uint64_t seed, std::uint64_t version,
                                    std::uint32_t ordinal, const BlockKey& key);

// XXH3-64 of the stored bytes of one row. Any thread.
[[nodiscard]] std::uint64_t RowDigest(std::span<const std::uint8_t> row);

// XXH3-128, seed 0, of `front` and then `bytes`: the name of chunks, nodes and tail segments. Any
// thread.
[[nodiscard]] Digest128 ContentDigest(std::span<const std::uint8_t> front,
                                      std::span<const std::uint8_t> bytes);
[[nodiscard]] inline Digest128 ContentDigest(std::span<const std::uint8_t> bytes) {
  return ContentDigest({}, bytes);
}

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_DIGEST_H_
