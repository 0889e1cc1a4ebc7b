// Keys of full KV blocks: each is a hash of its tokens and of the key of the block before it, so
// that a key names a whole prefix. Two blocks with one key hold the KV of the same tokens.
#ifndef WAYMARK_ADAPTERS_REFERENCE_BLOCK_KEYS_H_
#define WAYMARK_ADAPTERS_REFERENCE_BLOCK_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/events.h"

namespace waymark::reference {

// Appends the keys (16 bytes each) of the full blocks of `tokens` that `keys` does not have yet;
// the keys already there must be those of the first blocks of the same tokens. block_tokens > 0.
void ExtendBlockKeys(std::span<const int32_t> tokens, int block_tokens,
                     std::vector<BlockKey>& keys);

}  // namespace waymark::reference

#endif  // WAYMARK_ADAPTERS_REFERENCE_BLOCK_KEYS_H_
