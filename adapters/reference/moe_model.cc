#include "adapters/reference/moe_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "adapters/reference/tokens.h"
#include "adapters/reference/vector_math.h"

namespace waymark::reference {
namespace {

// Blocks of the private cache in which RecomputeRoutes works; any size gives the same routes.
constexpr int kRecomputeBlockTokens = 16;

// Trained models attend to few tokens and route decisively; random weights of unit gain do neither:
// their attention is a mean over everything, and a changed block would hardly show in a route.
constexpr float kQueryGain = 3.0f;
constexpr float kRouterGain = 2.0f;
constexpr float kLogitGain = 2.5f;

// Draws weights, uniform with the variance gain^2 / inputs.
class WeightGenerator {
 public:
  explicit WeightGenerator(uint64_t seed) : state_(Mix64(seed)) {}

  std::vector<float> Matrix(int inputs, int outputs, float gain) {
    const float bound = gain * std::sqrt(3.0f / static_cast<float>(inputs));
    std::vector<float> weights(static_cast<size_t>(inputs) * static_cast<size_t>(outputs));
    for (float& weight : weights)
      weight = bound * Uniform();
    return weights;
  }

  std::vector<float> Gains(int size) {
    std::vector<float> gains(static_cast<size_t>(size));
    for (float& gain : gains)
      gain = 1.0f + 0.1f * Uniform();
    return gains;
  }

 private:
  // In [-1, 1).
  float Uniform() {
    const uint64_t bits = Mix64(state_++);
    return static_cast<float>(bits >> 40) * 0x1.0p-23f - 1.0f;
  }

  uint64_t state_;
};

kernels::RoutingConfig RouterOf(const MoeModelConfig& config) {
  kernels::RoutingConfig router;
  router.method = config.router_method;
  router.top_k = config.top_k;
  return router;
}

template <typename T>
void Grow(std::vector<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
}

}  // namespace

std::vector<int> MoeModelConfig::MoeLayerIds() const {
  std::vector<int> ids(static_cast<size_t>(num_moe_layers()));
  std::iota(ids.begin(), ids.end(), num_dense_layers);
  return ids;
}

absl::Status MoeModelConfig::Validate() const {
  constexpr int kMost = 1 << 20;
  const struct {
    const char* field;
    int value, least, most;
  } rules[] = {
      {"num_layers", num_layers, 1, kMost},
      {"num_dense_layers", num_dense_layers, 0, num_layers - 1},
      {"num_heads", num_heads, 1, kMost},
      {"model_width", model_width, 1, kMost},
      {"num_experts", num_experts, 1, kernels::kMaxExperts},
      {"top_k", top_k, 1, std::min(num_experts, kernels::kMaxTopK)},
      {"expert_width", expert_width, 1, kMost},
      {"dense_width", dense_width, 1, kMost},
      {"max_positions", max_positions, 1, kMost},
  };
  for (const auto& [field, value, least, most] : rules) {
    if (value >= least && value <= most) continue;
    return absl::InvalidArgumentError(absl::StrCat("MoeModelConfig.", field, " must be in [", least,
                                                   ", ", most, "], got ", value));
  }
  if (model_width % (2 * num_heads) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("MoeModelConfig.model_width must be a multiple of 2 x num_heads (",
                   2 * num_heads, "), got ", model_width));
}

MoeModel::MoeModel(const MoeModelConfig& config) : config_(config) {
  if (!config.Validate().ok()) return;
  head_dim_ = config.model_width / config.num_heads;
  WeightGenerator source(config.weight_seed);
  const int width = config.model_width;
  embedding_ = source.Matrix(1, kVocabulary * width, 1.0f / std::sqrt(3.0f));
  final_gain_ = source.Gains(width);
  unembed_ = source.Matrix(width, kVocabulary, kLogitGain);
  for (int l = 0; l < config.num_layers; ++l) {
    const bool dense = l < config.num_dense_layers;
    const int inner = dense ? config.dense_width : config.expert_width;
    Layer layer;
    layer.attention_gain = source.Gains(width);
    layer.mlp_gain = source.Gains(width);
    layer.query = source.Matrix(width, width, kQueryGain);
    layer.key = source.Matrix(width, width, 1.0f);
    layer.value = source.Matrix(width, width, 1.0f);
    layer.output = source.Matrix(width, width, 1.0f);
    if (!dense) layer.router = source.Matrix(width, config.num_experts, kRouterGain);
    for (int m = 0; m < (dense ? 1 : config.num_experts); ++m) {
      Mlp mlp;
      mlp.gate = source.Matrix(width, inner, 1.5f);
      mlp.up = source.Matrix(width, inner, 1.5f);
      mlp.down = source.Matrix(inner, width, 1.0f);
      layer.mlps.push_back(std::move(mlp));
    }
    layers_.push_back(std::move(layer));
  }
  const int half = head_dim_ / 2;
  for (int position = 0; position < config.max_positions; ++position) {
    for (int i = 0; i < half; ++i) {
      const double frequency = std::pow(10000.0, -static_cast<double>(i) / half);
      cosines_.push_back(static_cast<float>(std::cos(position * frequency)));
      sines_.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  }
}

PagedKv MoeModel::MakeKv(int num_blocks, int block_tokens) const {
  return PagedKv(config_.num_layers, config_.num_heads, head_dim_, num_blocks, block_tokens);
}

absl::Status RouteAlone(int /*layer*/, const kernels::RoutingConfig& config,
                        const kernels::RoutingTensors& tensors) {
  const kernels::RoutingCode code = kernels::RouteOnHost(config, tensors);
  return code.ok() ? absl::OkStatus() : absl::InvalidArgumentError(code.ToString());
}

void MoeModel::StoreKeysAndValues(const ForwardBatch& batch, int layer_id, PagedKv& kv,
                                  ForwardScratch& scratch) const {
  const Layer& layer = layers_[static_cast<size_t>(layer_id)];
  const int width = config_.model_width;
  const int half = head_dim_ / 2;
  for (size_t row = 0; row < batch.tokens.size(); ++row) {
    const size_t at = row * static_cast<size_t>(width);
    const size_t angle = static_cast<size_t>(batch.positions[row]) * static_cast<size_t>(half);
    float* normed = scratch.normed_.data();
    float* query = scratch.query_.data() + at;
    float* mixed = scratch.mixed_.data();
    RmsNorm(scratch.hidden_.data() + at, layer.attention_gain.data(), width, normed);
    MatVec(normed, layer.query.data(), width, width, query);
    Rotate(cosines_.data() + angle, sines_.data() + angle, config_.num_heads, head_dim_, query);

    const int64_t slot = batch.slots[row];
    if (slot < 0) continue;
    const int64_t block = slot / kv.block_tokens();
    const int64_t offset = slot % kv.block_tokens();
    MatVec(normed, layer.key.data(), width, width, mixed);
    Rotate(cosines_.data() + angle, sines_.data() + angle, config_.num_heads, head_dim_, mixed);
    for (int h = 0; h < config_.num_heads; ++h) {
      float* keys = kv.Keys(layer_id, block, h);
      for (int d = 0; d < head_dim_; ++d) {
        keys[int64_t{d} * kv.block_tokens() + offset] = mixed[h * head_dim_ + d];
      }
    }
    MatVec(normed, layer.value.data(), width, width, mixed);
    for (int h = 0; h < config_.num_heads; ++h) {
      std::copy_n(mixed + h * head_dim_, head_dim_,
                  kv.Values(layer_id, block, h) + offset * head_dim_);
    }
  }
}

void MoeModel::Attend(const ForwardBatch& batch, size_t row, int layer_id, PagedKv& kv,
                      ForwardScratch& scratch) const {
  const int32_t sequence = batch.sequences[row];
  if (sequence < 0) return;
  const Layer& layer = layers_[static_cast<size_t>(layer_id)];
  const std::span<const int32_t> blocks = batch.block_tables[static_cast<size_t>(sequence)];
  const int width = config_.model_width;
  const int block_tokens = kv.block_tokens();
  const int length = batch.positions[row] + 1;
  const int num_blocks = (length + block_tokens - 1) / block_tokens;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  const size_t at = row * static_cast<size_t>(width);
  float* scores = scratch.scores_.data();
  float* mixed = scratch.mixed_.data();
  std::fill_n(mixed, width, 0.0f);
  for (int h = 0; h < config_.num_heads; ++h) {
    const float* query = scratch.query_.data() + at + h * head_dim_;
    for (int b = 0; b < num_blocks; ++b) {
      // Whole blocks: what lies beyond `length` is computed and never looked at.
      MatVec(query, kv.Keys(layer_id, blocks[static_cast<size_t>(b)], h), head_dim_, block_tokens,
             scores + b * block_tokens);
    }
    for (int p = 0; p < length; ++p)
      scores[p] *= scale;
    Softmax(length, scores);
    for (int p = 0; p < length; ++p) {
      const int64_t block = blocks[static_cast<size_t>(p / block_tokens)];
      AddScaled(kv.Values(layer_id, block, h) + p % block_tokens * head_dim_, scores[p], head_dim_,
                mixed + h * head_dim_);
    }
  }
  MatVec(mixed, layer.output.data(), width, width, scratch.normed_.data());
  AddScaled(scratch.normed_.data(), 1.0f, width, scratch.hidden_.data() + at);
}

void MoeModel::RunMlp(const Mlp& mlp, int inner, float scale, size_t row,
                      ForwardScratch& scratch) const {
  const int width = config_.model_width;
  const size_t at = row * static_cast<size_t>(width);
  const float* input = scratch.mlp_input_.data() + at;
  MatVec(input, mlp.gate.data(), width, inner, scratch.gate_.data());
  MatVec(input, mlp.up.data(), width, inner, scratch.up_.data());
  SwiGlu(scratch.up_.data(), inner, scratch.gate_.data());
  MatVec(scratch.gate_.data(), mlp.down.data(), inner, width, scratch.mixed_.data());
  AddScaled(scratch.mixed_.data(), scale, width, scratch.hidden_.data() + at);
}

// The router's logits of every row, and what `route` makes of them: chosen_ and shares_.
absl::Status MoeModel::RouteRows(const Layer& layer, size_t rows, int moe_layer,
                                 const RouteLayer& route, ForwardScratch& scratch) const {
  using kernels::DType;
  using kernels::Tensor;
  const auto experts = static_cast<size_t>(config_.num_experts);
  for (size_t row = 0; row < rows; ++row) {
    MatVec(scratch.mlp_input_.data() + row * static_cast<size_t>(config_.model_width),
           layer.router.data(), config_.model_width, config_.num_experts,
           scratch.router_.data() + row * experts);
  }
  const auto count = static_cast<int64_t>(rows);
  kernels::RoutingTensors tensors;
  tensors.logits =
      Tensor::Matrix(scratch.router_.data(), DType::kFloat32, count, config_.num_experts);
  tensors.topk_ids = Tensor::Matrix(scratch.chosen_.data(), DType::kInt32, count, config_.top_k);
  tensors.topk_weights =
      Tensor::Matrix(scratch.shares_.data(), DType::kFloat32, count, config_.top_k);
  return route(moe_layer, RouterOf(config_), tensors);
}

absl::Status MoeModel::Forward(const ForwardBatch& batch, const RouteLayer& route, PagedKv& kv,
                               ForwardScratch& scratch, std::span<float> logits) const {
  const size_t rows = batch.tokens.size();
  if (rows == 0) return absl::OkStatus();
  const int width = config_.model_width;
  const size_t row_floats = static_cast<size_t>(width);
  const size_t longest =
      static_cast<size_t>(*std::max_element(batch.positions.begin(), batch.positions.end())) + 1;
  const size_t inner = static_cast<size_t>(std::max(config_.dense_width, config_.expert_width));
  Grow(scratch.hidden_, rows * row_floats);
  Grow(scratch.query_, rows * row_floats);
  Grow(scratch.normed_, row_floats);
  Grow(scratch.mixed_, row_floats);
  Grow(scratch.scores_, longest + static_cast<size_t>(kv.block_tokens()));
  const size_t top_k = static_cast<size_t>(config_.top_k);
  Grow(scratch.mlp_input_, rows * row_floats);
  Grow(scratch.router_, rows * static_cast<size_t>(config_.num_experts));
  Grow(scratch.chosen_, rows * top_k);
  Grow(scratch.shares_, rows * top_k);
  Grow(scratch.gate_, inner);
  Grow(scratch.up_, inner);

  for (size_t row = 0; row < rows; ++row) {
    std::copy_n(embedding_.data() + static_cast<size_t>(batch.tokens[row]) * row_floats, row_floats,
                scratch.hidden_.data() + row * row_floats);
  }
  for (int l = 0; l < config_.num_layers; ++l) {
    // Every row's keys are in the cache before any row attends: rows of one chunk see each other.
    StoreKeysAndValues(batch, l, kv, scratch);
    const Layer& layer = layers_[static_cast<size_t>(l)];
    for (size_t row = 0; row < rows; ++row) {
      Attend(batch, row, l, kv, scratch);
      RmsNorm(scratch.hidden_.data() + row * row_floats, layer.mlp_gain.data(), width,
              scratch.mlp_input_.data() + row * row_floats);
    }
    if (layer.router.empty()) {
      for (size_t row = 0; row < rows; ++row)
        RunMlp(layer.mlps[0], config_.dense_width, 1.0f, row, scratch);
      continue;
    }
    if (absl::Status status = RouteRows(layer, rows, l - config_.num_dense_layers, route, scratch);
        !status.ok()) {
      return status;
    }
    for (size_t i = 0; i < rows * top_k; ++i) {
      RunMlp(layer.mlps[static_cast<size_t>(scratch.chosen_[i])], config_.expert_width,
             scratch.shares_[i], i / top_k, scratch);
    }
  }
  for (size_t m = 0; m < batch.logit_rows.size(); ++m) {
    const size_t row = static_cast<size_t>(batch.logit_rows[m]);
    RmsNorm(scratch.hidden_.data() + row * row_floats, final_gain_.data(), width,
            scratch.normed_.data());
    MatVec(scratch.normed_.data(), unembed_.data(), width, kVocabulary,
           logits.data() + m * static_cast<size_t>(kVocabulary));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> RecomputeRoutes(const MoeModel& model,
                                                     std::span<const int32_t> tokens) {
  const MoeModelConfig& config = model.config();
  if (absl::Status status = config.Validate(); !status.ok()) return status;
  const size_t rows = tokens.size();
  if (rows == 0) return std::vector<int32_t>();
  const size_t num_layers = static_cast<size_t>(config.num_moe_layers());
  const size_t top_k = static_cast<size_t>(config.top_k);
  const int num_blocks = static_cast<int>(rows) / kRecomputeBlockTokens + 1;
  PagedKv kv = model.MakeKv(num_blocks, kRecomputeBlockTokens);

  std::vector<int32_t> blocks(static_cast<size_t>(num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<int32_t> positions(rows);
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int64_t> slots(positions.begin(), positions.end());
  const std::vector<int32_t> sequences(rows, 0);
  const std::span<const int32_t> table(blocks);
  std::vector<int32_t> routes(rows * num_layers * top_k);
  const auto route = [&](int layer, const kernels::RoutingConfig& config_of_layer,
                         const kernels::RoutingTensors& tensors) {
    absl::Status status = RouteAlone(layer, config_of_layer, tensors);
    const auto* ids = static_cast<const int32_t*>(tensors.topk_ids.data);
    for (size_t row = 0; row < rows; ++row) {
      std::copy_n(ids + row * top_k, top_k,
                  &routes[(row * num_layers + static_cast<size_t>(layer)) * top_k]);
    }
    return status;
  };
  ForwardScratch scratch;
  const ForwardBatch batch = {tokens, positions, sequences, slots, {&table, 1}, {}};
  if (absl::Status status = model.Forward(batch, route, kv, scratch, {}); !status.ok()) {
    return status;
  }
  return routes;
}

}  // namespace waymark::reference
