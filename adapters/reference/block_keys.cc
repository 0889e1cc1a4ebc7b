#include "adapters/reference/block_keys.h"

#include <xxhash.h>

namespace waymark::reference {

void ExtendBlockKeys(std::span<const int32_t> tokens, int block_tokens,
                     std::vector<BlockKey>& keys) {
  const size_t size = static_cast<size_t>(block_tokens);
  std::vector<uint8_t> input;
  while ((keys.size() + 1) * size <= tokens.size()) {
    input.clear();
    if (!keys.empty()) {
      const BlockKey& parent = keys.back();
      input.assign(parent.bytes.begin(), parent.bytes.begin() + parent.size);
    }
    for (const int32_t token : tokens.subspan(keys.size() * size, size)) {
      // A token has 9 bits; two bytes, written out, keep the key the same on every machine.
      input.push_back(static_cast<uint8_t>(token & 0xff));
      input.push_back(static_cast<uint8_t>(token >> 8));
    }
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(input.data(), input.size()));
    keys.push_back(BlockKey::FromBytes(digest.digest));
  }
}

}  // namespace waymark::reference
