// The model's small parts: sums in tiles, sampling that depends on seed and position only.
#include <cstdint>
#include <vector>

#include "adapters/reference/tokens.h"
#include "adapters/reference/vector_math.h"
#include "gtest/gtest.h"

namespace waymark::reference {
namespace {

TEST(MatVec, TilesAndTheRestAgreeWithThePlainSum) {
  constexpr int kInputs = 7;
  constexpr int kOutputs = 37;  // two tiles and a rest
  std::vector<float> x(kInputs), weights(kInputs * kOutputs), out(kOutputs);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = 0.1f * static_cast<float>(i + 1);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(Mix64(i) % 1000) * 0.01f;
  }
  MatVec(x.data(), weights.data(), kInputs, kOutputs, out.data());
  for (size_t j = 0; j < out.size(); ++j) {
    float sum = 0;
    for (size_t i = 0; i < x.size(); ++i)
      sum += x[i] * weights[i * kOutputs + j];
    EXPECT_FLOAT_EQ(out[j], sum) << j;
  }
}

TEST(SampleToken, DependsOnSeedAndPositionAlone) {
  std::vector<float> logits(kVocabulary);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>(Mix64(i) % 100) * 0.01f;
  const SamplingOptions options = {1.0f, 42};
  int changed_by_position = 0;
  int changed_by_seed = 0;
  for (int64_t position = 0; position < 100; ++position) {
    const int32_t token = SampleToken(logits, options, position);
    EXPECT_EQ(SampleToken(logits, options, position), token);
    changed_by_position += SampleToken(logits, options, position + 1) != token ? 1 : 0;
    changed_by_seed += SampleToken(logits, {1.0f, 43}, position) != token ? 1 : 0;
  }
  EXPECT_GT(changed_by_position, 90);
  EXPECT_GT(changed_by_seed, 90);
}

TEST(SampleToken, FollowsTheTemperature) {
  std::vector<float> logits(kVocabulary, 0.0f);
  logits[7] = logits[9] = 4.0f;
  EXPECT_EQ(SampleToken(logits, {0.0f, 1}, 0), 7) << "the lowest of equals";
  int hits = 0;
  for (int64_t position = 0; position < 2000; ++position) {
    const int32_t token = SampleToken(logits, {1.0f, 1}, position);
    hits += token == 7 || token == 9 ? 1 : 0;
  }
  // 2 e^4 / (2 e^4 + 256) = 0.299.
  EXPECT_NEAR(hits / 2000.0, 0.299, 0.05);
}

}  // namespace
}  // namespace waymark::reference
