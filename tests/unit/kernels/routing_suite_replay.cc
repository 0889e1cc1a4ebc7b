// Replay: recorded experts are used as they are, weights come from the logits at hand.
#include <algorithm>
#include <limits>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tests/unit/kernels/routing_inputs.h"
#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class RoutingReplay : public RoutingSuite, public testing::WithParamInterface<MethodInfo> {
 protected:
  // With groups and a bias where the method takes them.
  static Problem Make(const MethodInfo& method, std::int32_t experts, std::int32_t top_k,
                      std::mt19937_64& random) {
    Problem problem = MakeProblem(method.id, experts, std::min({top_k, experts, method.max_k}),
                                  {std::begin(kFamilies), std::end(kFamilies)}, random);
    if (method.takes_bias) problem.bias = MakeBias(BiasFamily::kOffset, experts, random);
    if (method.takes_groups && experts % 4 == 0 && problem.config.top_k <= experts / 2) {
      problem.config.num_groups = 4;
      problem.config.topk_groups = 2;
    }
    if (method.takes_scale) problem.config.scale = 2.5f;
    return problem;
  }
};

INSTANTIATE_TEST_SUITE_P(, RoutingReplay, testing::ValuesIn(AllMethods()),
                         [](const auto& method) { return method.param.name; });

TEST_P(RoutingReplay, OfWhatWasRecordedGivesTheSameIdsAndWeights) {
  std::mt19937_64 random = RoutingRandom(300);
  for (const std::int32_t experts : {1, 8, 33, 128, 256, 300, 384, 1024}) {
    for (const std::int32_t k : {1, 8, 22, 32}) {
      Problem problem = Make(GetParam(), experts, k, random);
      problem.weight_type = kWeightTypes[random() % 2];
      problem.logit_type = kLogitTypes[random() % 3];
      RouteResult result = RunReference(problem);
      problem.replay = result.recorded;
      result.routed.assign(static_cast<std::size_t>(problem.rows), 0);
      ExpectEverywhere(result, problem);
      if (HasFailure()) return;
    }
  }
}

// Any order of any experts, groups and the best keys notwithstanding.
TEST_P(RoutingReplay, KeepsTheGivenIdsInTheGivenOrder) {
  std::mt19937_64 random = RoutingRandom(301);
  for (const std::int32_t experts : {1, 8, 33, 128, 256, 300, 1024}) {
    for (const std::int32_t k : {1, 8, 32}) {
      Problem problem = Make(GetParam(), experts, k, random);
      for (std::int64_t row = 0; row < problem.rows; ++row) {
        AppendReplayRow(false, experts, problem.config.top_k, random, problem.replay);
      }
      const RouteResult result = ExpectRight(problem);
      ASSERT_EQ(result.recorded, problem.replay) << problem.ToString();
      ASSERT_EQ(std::count(result.routed.begin(), result.routed.end(), 0), problem.rows);
      if (HasFailure()) return;
    }
  }
}

// One thing wrong in a row, at each of its places: the row is routed, and says so; the rows beside
// it are replayed.
TEST_P(RoutingReplay, MissingRowsAreRouted) {
  std::mt19937_64 random = RoutingRandom(303);
  for (const std::int32_t experts : PlainOr<std::vector<std::int32_t>>({32, 256, 1000}, {256})) {
    for (const std::int32_t k : {1, 8, 32}) {
      Problem routed = Make(GetParam(), experts, k, random);
      const std::int32_t top_k = routed.config.top_k;
      const RouteResult native = RunReference(routed);
      std::vector<std::int16_t> whole;
      AppendReplayRow(false, experts, top_k, random, whole);
      const auto e = static_cast<std::int16_t>(experts);
      for (const std::int16_t wrong : {std::int16_t{-1}, e, static_cast<std::int16_t>(e + 1),
                                       std::int16_t{32767}, std::int16_t{-32768}}) {
        Problem problem = routed.Rows(
            std::vector<std::int64_t>(static_cast<std::size_t>(2 * top_k), routed.rows - 1));
        for (std::int32_t at = 0; at < top_k; ++at) {
          std::vector<std::int16_t> broken = whole;
          broken[static_cast<std::size_t>(at)] = wrong;
          problem.replay.insert(problem.replay.end(), broken.begin(), broken.end());
          problem.replay.insert(problem.replay.end(), whole.begin(), whole.end());
        }
        const RouteResult result = ExpectRight(problem);
        for (std::size_t row = 0; row < result.routed.size(); ++row) {
          ASSERT_EQ(result.routed[row], row % 2 == 0 ? 1 : 0) << problem.ToString();
          if (row % 2 != 0) continue;
          for (std::size_t i = 0; i < static_cast<std::size_t>(top_k); ++i) {
            const std::size_t last = native.ids.size() - static_cast<std::size_t>(top_k) + i;
            const std::size_t at = row * static_cast<std::size_t>(top_k) + i;
            ASSERT_EQ(result.ids[at], native.ids[last]);
            ASSERT_EQ(result.weights[at], native.weights[last]);
          }
        }
      }
    }
  }
}

// Each pair of places: neighbours, and the two ends.
TEST_P(RoutingReplay, AnIdThatComesTwiceIsMissing) {
  const std::int32_t k = std::min(32, GetParam().max_k);
  std::mt19937_64 random = RoutingRandom(304);
  std::int64_t rows = 0;
  std::vector<std::int16_t> replay;
  for (std::int32_t a = 0; a < k; ++a) {
    for (std::int32_t b = a + 1; b < k; b += PlainOr(1, 5), ++rows) {
      std::vector<std::int16_t> ids;
      AppendReplayRow(false, 300, k, random, ids);
      ids[static_cast<std::size_t>(b)] = ids[static_cast<std::size_t>(a)];
      replay.insert(replay.end(), ids.begin(), ids.end());
    }
  }
  if (rows == 0) GTEST_SKIP() << "one expert a token";
  Problem problem =
      MakeProblem(GetParam().id, 300, k,
                  std::vector<Family>(static_cast<std::size_t>(rows), Family::kTieFree), random);
  problem.replay = replay;
  const RouteResult result = ExpectRight(problem);
  EXPECT_EQ(std::count(result.routed.begin(), result.routed.end(), 1), rows);
}

// An expert that routing would never choose: of weight 0, not NaN, not left out.
TEST_F(RoutingSuite, ReplayKeepsExpertsOfMinusInfinity) {
  for (const MethodInfo& method : AllMethods()) {
    Problem problem;
    problem.config = {method.id, std::min(2, method.max_k)};
    problem.rows = 2;
    problem.experts = 4;
    problem.logits = {1, 2, 3, -kInf, 1, 2, 3, std::numeric_limits<float>::quiet_NaN()};
    problem.replay = {3, 1, 3, 1};
    if (problem.config.top_k == 1) problem.replay = {3, 3};
    const RouteResult result = ExpectRight(problem);
    EXPECT_EQ(result.recorded, problem.replay);
    EXPECT_EQ(result.Weight(0), method.id == RoutingMethod::kTopK ? -kInf : 0.0f) << method.name;
  }
}

}  // namespace
}  // namespace waymark::kernels
