// Digests: the hashes of the key index, of rows, and of objects that are named by their content.
//
// All are XXH3: equal on every build and platform, and not safe against an attacker who knows the
// seed. All functions may be called on any thread.
#ifndef WAYMARK_BLOCKSTORE_DIGEST_H_
#define WAYMARK_BLOCKSTORE_DIGEST_H_

#include <cstdint>
#include <span>

#include "blockstore/events.h"

namespace waymark {

// 128 bits as four words of 32 bits; w[0] holds the lowest bits. Compares by value.
struct Digest128 {
  std::uint32_t w[4] = {0, 0, 0, 0};

  friend bool operator==(const Digest128&, const Digest128&) = default;
};

// A random seed for IndexKey, not 0.
[[nodiscard]] std::uint64_t DrawSeed();
// The digest under which the key index finds page `ordinal` of the block with `key` and `version`:
// XXH3-128 with `seed` of version (uint64), ordinal (uint32), key size (uint8) and the key's 32
// bytes, all little-endian.
[[nodiscard]] Digest128 IndexKey(std::uint64_t seed, std::uint64_t version, std::uint32_t ordinal,
                                 const BlockKey& key);

// XXH3-64 of the stored bytes of one row.
[[nodiscard]] std::uint64_t RowDigest(std::span<const std::uint8_t> row);

// XXH3-128 with seed 0 of `front` followed by `bytes`. It names chunks, nodes and tail segments
// that are published without a key.
[[nodiscard]] Digest128 ContentDigest(std::span<const std::uint8_t> front,
                                      std::span<const std::uint8_t> bytes);
[[nodiscard]] inline Digest128 ContentDigest(std::span<const std::uint8_t> bytes) {
  return ContentDigest({}, bytes);
}

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_DIGEST_H_
