// The KV cache of the embedded model: fixed memory, addressed by block id and offset, as in any
// paged-attention engine. It knows nothing of requests, reference counts or prefixes; those are the
// engine's. Writing a block's keys and values is the forward pass's business.
#ifndef WAYMARK_ADAPTERS_REFERENCE_PAGED_KV_H_
#define WAYMARK_ADAPTERS_REFERENCE_PAGED_KV_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace waymark::reference {

// Not thread-safe: one forward at a time. Movable; owns its memory.
class PagedKv {
 public:
  // Room for `num_blocks` blocks of `block_tokens` tokens in each of `num_layers` layers, zeroed.
  // All arguments > 0.
  PagedKv(int num_layers, int num_heads, int head_dim, int num_blocks, int block_tokens)
      : num_layers_(num_layers),
        head_dim_(head_dim),
        num_blocks_(num_blocks),
        block_tokens_(block_tokens),
        block_floats_(int64_t{num_heads} * head_dim * block_tokens),
        keys_(static_cast<size_t>(block_floats_ * num_blocks * num_layers)),
        values_(static_cast<size_t>(block_floats_ * num_blocks * num_layers)) {}

  int num_blocks() const { return num_blocks_; }
  int block_tokens() const { return block_tokens_; }

  // The keys of one head in one block: [head_dim, block_tokens], so that scores of a whole block
  // are computed at once, each summed over head_dim in order.
  float* Keys(int layer, int64_t block, int head) {
    return keys_.data() + Block(layer, block) + int64_t{head} * head_dim_ * block_tokens_;
  }
  // The values of one head in one block: [block_tokens, head_dim].
  float* Values(int layer, int64_t block, int head) {
    return values_.data() + Block(layer, block) + int64_t{head} * head_dim_ * block_tokens_;
  }

 private:
  int64_t Block(int layer, int64_t block) const {
    return (int64_t{layer} * num_blocks_ + block) * block_floats_;
  }

  int num_layers_;
  int head_dim_;
  int num_blocks_;
  int block_tokens_;
  int64_t block_floats_;
  std::vector<float> keys_;
  std::vector<float> values_;
};

}  // namespace waymark::reference

#endif  // WAYMARK_ADAPTERS_REFERENCE_PAGED_KV_H_
