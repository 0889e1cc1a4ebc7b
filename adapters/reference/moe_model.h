// A small but real mixture-of-experts transformer on the CPU: embedding, RMSNorm, rotary positions,
// attention over a paged KV cache, a top-k router, SwiGLU experts, logits. Weights come from a
// seed.
//
// It owns the weights and the forward pass, nothing else: requests, blocks and sampling are the
// engine's. It promises batch invariance: a token's hidden state, route and logits are the same
// bits whatever else is in the batch, however its prompt is cut into chunks, and whichever physical
// blocks hold its KV. So a route that differs from a recomputation from scratch is a wrong route.
#ifndef WAYMARK_ADAPTERS_REFERENCE_MOE_MODEL_H_
#define WAYMARK_ADAPTERS_REFERENCE_MOE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/routing.h"

namespace waymark::reference {

// Sizes of a model; the comments are requirements. The defaults make a token cost about 0.1 ms on
// one core.
struct MoeModelConfig {
  int num_layers = 6;        // transformer layers, >= 1
  int num_dense_layers = 1;  // leading layers without a router, 0 <= n < num_layers
  int model_width = 64;      // hidden size, a multiple of 2 x num_heads
  int num_heads = 4;         // attention heads, >= 1
  int num_experts = 16;      // E, 1 .. kernels::kMaxExperts
  int top_k = 4;             // K, 1 .. num_experts, at most kernels::kMaxTopK
  int expert_width = 32;     // inner size of an expert, >= 1
  int dense_width = 64;      // inner size of a dense layer's MLP, >= 1
  int max_positions = 4096;  // longest sequence, >= 1
  // What the router makes of its logits; a method that needs no bias and no groups.
  kernels::RoutingMethod router_method = kernels::RoutingMethod::kRenormalize;
  uint64_t weight_seed = 1;  // other seeds are other models (or other weight versions)

  // Number of layers that route: L.
  int num_moe_layers() const { return num_layers - num_dense_layers; }
  // The transformer layer numbers that route, ascending: [L].
  std::vector<int> MoeLayerIds() const;
  // InvalidArgument naming the first field that breaks its requirement, the rule and its value.
  [[nodiscard]] absl::Status Validate() const;

  friend bool operator==(const MoeModelConfig&, const MoeModelConfig&) = default;
};

// Routes the rows of a forward in one MoE layer (0 ... L - 1): a call of kernels/routing.h with the
// model's router logits, padding rows included, whose topk_ids and topk_weights the forward then
// uses. The engine that supplies it decides whether the ids are recorded; an error ends the
// forward.
using RouteLayer = std::function<absl::Status(int layer, const kernels::RoutingConfig& config,
                                              const kernels::RoutingTensors& tensors)>;
// Routes, and records nothing.
[[nodiscard]] absl::Status RouteAlone(int layer, const kernels::RoutingConfig& config,
                                      const kernels::RoutingTensors& tensors);

// The KV cache of the model: fixed memory, addressed by block id and offset, as in any
// paged-attention engine. Requests, reference counts and prefixes are the engine's.
//
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

// A flat batch. All arrays are the caller's and live for the call.
struct ForwardBatch {
  std::span<const int32_t> tokens;     // [N] token ids, 0 .. kVocabulary - 1
  std::span<const int32_t> positions;  // [N] 0-based position in its sequence
  std::span<const int32_t> sequences;  // [N] index into block_tables; -1 = a padding row
  std::span<const int64_t> slots;      // [N] where the token's KV goes; -1 = nowhere (padding)
  // Per sequence, its physical blocks in logical order, enough for its greatest position.
  std::span<const std::span<const int32_t>> block_tables;
  std::span<const int32_t> logit_rows;  // [M] rows of the batch whose logits are wanted
};

// Memory that a forward needs beside its arguments; grows to the largest batch and is reused.
// One per thread.
class ForwardScratch {
 public:
  ForwardScratch() = default;

 private:
  friend class MoeModel;
  std::vector<float> hidden_;     // [N, width] residual stream
  std::vector<float> normed_;     // [width]
  std::vector<float> query_;      // [N, width]
  std::vector<float> mixed_;      // [width] attention or expert output
  std::vector<float> scores_;     // [longest sequence, rounded up to blocks]
  std::vector<float> mlp_input_;  // [N, width]
  std::vector<float> router_;     // [N, experts] logits
  std::vector<float> gate_;       // [inner width]
  std::vector<float> up_;         // [inner width]
  std::vector<int32_t> chosen_;   // [N, top_k]
  std::vector<float> shares_;     // [N, top_k] weight of each chosen expert
};

// Immutable: safe to share between threads, each with its own scratch and cache.
class MoeModel {
 public:
  // Draws the weights; none of a config that Validate refuses, with which nothing runs.
  explicit MoeModel(const MoeModelConfig& config);

  const MoeModelConfig& config() const { return config_; }

  // A zeroed cache of this model's shape. Both arguments > 0.
  PagedKv MakeKv(int num_blocks, int block_tokens) const;

  // Runs every row of the batch through the model: writes its keys and values into its slot, then
  // attends over positions 0 .. position of its sequence, which must be in the cache or in the
  // batch. Two rows may share a slot when they are the same token after the same prefix. `route` is
  // called once for each MoE layer, in order. logits: [M, kVocabulary], row m for logit_rows[m].
  // Errors: `route`'s. REQUIRES: config().Validate() is OK.
  [[nodiscard]] absl::Status Forward(const ForwardBatch& batch, const RouteLayer& route,
                                     PagedKv& kv, ForwardScratch& scratch,
                                     std::span<float> logits) const;

 private:
  struct Mlp {
    std::vector<float> gate, up;  // [width, inner]
    std::vector<float> down;      // [inner, width]
  };
  struct Layer {
    std::vector<float> attention_gain, mlp_gain;   // [width]
    std::vector<float> query, key, value, output;  // [width, width]
    std::vector<float> router;                     // [width, experts]; empty in a dense layer
    std::vector<Mlp> mlps;                         // the experts, or the one dense MLP
  };

  void StoreKeysAndValues(const ForwardBatch& batch, int layer, PagedKv& kv,
                          ForwardScratch& scratch) const;
  void Attend(const ForwardBatch& batch, size_t row, int layer, PagedKv& kv,
              ForwardScratch& scratch) const;
  absl::Status RouteRows(const Layer& layer, size_t rows, int moe_layer, const RouteLayer& route,
                         ForwardScratch& scratch) const;
  void RunMlp(const Mlp& mlp, int inner, float scale, size_t row, ForwardScratch& scratch) const;

  MoeModelConfig config_;
  int head_dim_ = 0;
  std::vector<float> embedding_;   // [vocabulary, width]
  std::vector<float> final_gain_;  // [width]
  std::vector<float> unembed_;     // [width, vocabulary]
  std::vector<float> cosines_;     // [max_positions, head_dim / 2]
  std::vector<float> sines_;       // [max_positions, head_dim / 2]
  std::vector<Layer> layers_;
};

// The routes of a whole sequence, computed alone, from scratch and without any cache of before, in
// one prefill: the truth that a captured route is compared with. Returns the ids of positions
// 0 .. tokens.size() - 1, [tokens, L, K] row-major. Errors: MoeModelConfig::Validate's.
[[nodiscard]] absl::StatusOr<std::vector<int32_t>> RecomputeRoutes(const MoeModel& model,
                                                                   std::span<const int32_t> tokens);

}  // namespace waymark::reference

#endif  // WAYMARK_ADAPTERS_REFERENCE_MOE_MODEL_H_
