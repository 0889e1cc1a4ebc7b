// The embedded model's promise: a wrong prefix shows in the routes that follow it. (That routes are
// the same whatever the batch, the chunks and the blocks: engine_test.cc, by recomputation.)
#include "adapters/reference/moe_model.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "adapters/reference/tokens.h"
#include "gtest/gtest.h"

namespace waymark::reference {
namespace {

constexpr int kBlockTokens = 8;
constexpr int kNumBlocks = 64;

MoeModel MakeModel() {
  MoeModelConfig config;
  config.max_positions = 512;
  return MoeModel(config);
}

std::vector<int32_t> RandomTokens(uint64_t seed, size_t size) {
  std::vector<int32_t> tokens(size);
  for (size_t i = 0; i < size; ++i)
    tokens[i] = static_cast<int32_t>(Mix64(seed * 7919 + i) % 256);
  return tokens;
}

// One sequence that goes through the model in pieces, in its own blocks.
struct Sequence {
  std::vector<int32_t> tokens;
  std::vector<int32_t> blocks;
  size_t done = 0;
  std::vector<int32_t> routes;  // [done, L, K]
  std::vector<float> logits;    // of the last row done
};

// Runs `counts[i]` next tokens of each sequence in one batch, with padding rows between them.
void RunBatch(const MoeModel& model, PagedKv& kv, ForwardScratch& scratch,
              const std::vector<Sequence*>& sequences, const std::vector<size_t>& counts) {
  const size_t num_layers = static_cast<size_t>(model.config().num_moe_layers());
  const size_t top_k = static_cast<size_t>(model.config().top_k);
  std::vector<int32_t> tokens, positions, owners, last_rows;
  std::vector<int64_t> slots;
  std::vector<std::span<const int32_t>> tables;
  for (size_t s = 0; s < sequences.size(); ++s) {
    Sequence& sequence = *sequences[s];
    tables.emplace_back(sequence.blocks);
    for (size_t i = 0; i < counts[s]; ++i) {
      const size_t position = sequence.done + i;
      tokens.push_back(sequence.tokens[position]);
      positions.push_back(static_cast<int32_t>(position));
      owners.push_back(static_cast<int32_t>(s));
      slots.push_back(int64_t{sequence.blocks[position / kBlockTokens]} * kBlockTokens +
                      static_cast<int64_t>(position % kBlockTokens));
    }
    last_rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
    tokens.push_back(0);
    positions.push_back(0);
    owners.push_back(-1);
    slots.push_back(-1);
  }
  const size_t rows = tokens.size();
  std::vector<int16_t> ids(num_layers * rows * top_k, -1);
  size_t layers = 0;
  const auto route = [&](int layer, const kernels::RoutingConfig& config,
                         const kernels::RoutingTensors& tensors) {
    EXPECT_EQ(layer, static_cast<int>(layers++));
    kernels::RoutingTensors recorded = tensors;
    recorded.replay_out = kernels::Tensor::Matrix(
        &ids[static_cast<size_t>(layer) * rows * top_k], kernels::DType::kInt16,
        static_cast<int64_t>(rows), static_cast<int64_t>(top_k));
    return RouteAlone(layer, config, recorded);
  };
  std::vector<float> logits(last_rows.size() * kVocabulary);
  const ForwardBatch batch = {tokens, positions, owners, slots, tables, last_rows};
  const absl::Status status = model.Forward(batch, route, kv, scratch, logits);
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(layers, num_layers);
  size_t row = 0;
  for (size_t s = 0; s < sequences.size(); ++s, ++row) {
    Sequence& sequence = *sequences[s];
    for (size_t i = 0; i < counts[s]; ++i, ++row) {
      for (size_t l = 0; l < num_layers; ++l) {
        const auto first = ids.begin() + static_cast<int64_t>((l * rows + row) * top_k);
        sequence.routes.insert(sequence.routes.end(), first, first + static_cast<int64_t>(top_k));
      }
    }
    sequence.done += counts[s];
    sequence.logits.assign(logits.begin() + static_cast<int64_t>(s * kVocabulary),
                           logits.begin() + static_cast<int64_t>((s + 1) * kVocabulary));
  }
}

Sequence MakeSequence(uint64_t seed, size_t size, int first_block) {
  Sequence sequence;
  sequence.tokens = RandomTokens(seed, size);
  sequence.blocks.resize(size / kBlockTokens + 1);
  std::iota(sequence.blocks.begin(), sequence.blocks.end(), first_block);
  return sequence;
}

// The sequence alone, in one prefill.
Sequence Alone(const MoeModel& model, const Sequence& like) {
  Sequence sequence;
  sequence.tokens = like.tokens;
  sequence.blocks.resize(like.tokens.size() / kBlockTokens + 1);
  std::iota(sequence.blocks.begin(), sequence.blocks.end(), 0);
  PagedKv kv = model.MakeKv(kNumBlocks, kBlockTokens);
  ForwardScratch scratch;
  RunBatch(model, kv, scratch, {&sequence}, {sequence.tokens.size()});
  return sequence;
}

TEST(MoeModel, AWrongPrefixBlockChangesMostRoutesAfterIt) {
  const MoeModel model = MakeModel();
  const size_t row_ids =
      static_cast<size_t>(model.config().num_moe_layers() * model.config().top_k);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Sequence sequence = MakeSequence(seed, 120, 0);
    const Sequence alone = Alone(model, sequence);
    Sequence other = MakeSequence(seed + 100, 40, 40);
    PagedKv kv = model.MakeKv(kNumBlocks, kBlockTokens);
    ForwardScratch scratch;
    RunBatch(model, kv, scratch, {&sequence}, {64});
    RunBatch(model, kv, scratch, {&other}, {40});
    sequence.blocks[3] = other.blocks[3];  // 8 of the 64 tokens of its prefix are not its own
    RunBatch(model, kv, scratch, {&sequence}, {56});
    EXPECT_TRUE(std::equal(alone.routes.begin(),
                           alone.routes.begin() + static_cast<int64_t>(64 * row_ids),
                           sequence.routes.begin()));
    size_t changed = 0;
    for (size_t row = 64; row < 120; ++row) {
      const auto begin = static_cast<int64_t>(row * row_ids);
      const auto end = begin + static_cast<int64_t>(row_ids);
      if (!std::equal(alone.routes.begin() + begin, alone.routes.begin() + end,
                      sequence.routes.begin() + begin)) {
        ++changed;
      }
    }
    EXPECT_GE(changed, 50u) << "of 56 rows, seed " << seed;
  }
}

TEST(MoeModel, RoutesAreDistinctInRangeAndUseEveryExpert) {
  const MoeModel model = MakeModel();
  const Sequence alone = Alone(model, MakeSequence(5, 300, 0));
  const size_t num_layers = static_cast<size_t>(model.config().num_moe_layers());
  std::vector<std::set<int32_t>> used(num_layers);
  for (size_t i = 0; i < alone.routes.size(); i += 4) {
    const std::set<int32_t> row(alone.routes.begin() + static_cast<int64_t>(i),
                                alone.routes.begin() + static_cast<int64_t>(i + 4));
    ASSERT_EQ(row.size(), 4u);
    ASSERT_GE(*row.begin(), 0);
    ASSERT_LT(*row.rbegin(), 16);
    used[i / 4 % num_layers].insert(row.begin(), row.end());
  }
  for (const std::set<int32_t>& layer : used)
    EXPECT_EQ(layer.size(), 16u);
}

TEST(MoeModel, AForwardEndsWithTheErrorOfItsRouting) {
  const MoeModel model = MakeModel();
  PagedKv kv = model.MakeKv(2, kBlockTokens);
  ForwardScratch scratch;
  const std::vector<int32_t> token = {65}, position = {0}, sequence = {0}, blocks = {1};
  const std::vector<int64_t> slot = {0};
  const std::span<const int32_t> table(blocks);
  const ForwardBatch batch = {token, position, sequence, slot, {&table, 1}, {}};
  const auto refuses = [](int layer, const kernels::RoutingConfig&,
                          const kernels::RoutingTensors&) {
    return layer == 2 ? absl::UnavailableError("no") : absl::OkStatus();
  };
  EXPECT_EQ(model.Forward(batch, refuses, kv, scratch, {}).code(), absl::StatusCode::kUnavailable);
}

TEST(MoeModel, OtherSeedsAreOtherModels) {
  MoeModelConfig config;
  config.max_positions = 64;
  const std::vector<int32_t> tokens = RandomTokens(9, 40);
  const auto first = RecomputeRoutes(MoeModel(config), tokens);
  config.weight_seed = 2;
  const auto second = RecomputeRoutes(MoeModel(config), tokens);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
}

TEST(MoeModel, LayerIdsNameTheLayersThatRoute) {
  MoeModelConfig config;
  EXPECT_EQ(config.MoeLayerIds(), (std::vector<int>{1, 2, 3, 4, 5}));
  config.num_dense_layers = 0;
  EXPECT_EQ(config.MoeLayerIds(), (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace waymark::reference
