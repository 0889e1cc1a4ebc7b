// How exact the arithmetic is: every number of the narrow types, and many of float32, against
// float64. Prints what it measures; the bounds are kUlpBounds (routing_oracle.cc).
#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tests/unit/kernels/routing_inputs.h"
#include "tests/unit/kernels/routing_oracle.h"
#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

class RoutingNumerics : public RoutingSuite {};

void Report(const char* what, double measured, double bound) {
  std::cout << what << ": " << measured << " ulp measured, bound " << bound << "\n";
  EXPECT_LE(measured, bound) << what;
}

// Rows of 32, all selected, with all 65,536 patterns of a narrow type.
Problem EveryNumber(DType type, RoutingMethod method) {
  Problem problem;
  problem.config.method = method;
  problem.config.top_k = 32;
  problem.rows = 2048;
  problem.experts = 32;
  problem.logit_type = type;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits)
    problem.logits.push_back(Decode(type, bits));
  return problem;
}

// Rows of 32, all selected, of float32 numbers: every exponent and sign, and dense where a sigmoid
// bends.
Problem ManyNumbers(RoutingMethod method, std::mt19937_64& random) {
  Problem problem;
  problem.config.method = method;
  problem.config.top_k = 32;
  problem.rows = PlainOr(32768, 4096);
  problem.experts = 32;
  std::uniform_real_distribution<float> bend(-20.0f, 20.0f), far(-90.0f, 90.0f);
  for (std::int64_t i = 0; i < problem.rows * problem.experts; ++i) {
    const auto any = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    problem.logits.push_back(i % 4 == 0 ? any : i % 4 == 1 ? far(random) : bend(random));
  }
  return problem;
}

// NaN is -inf, -0 is +0, everything else itself: the decoding of the narrow types, too.
TEST_F(RoutingNumerics, LogitsAreExact) {
  std::mt19937_64 random = RoutingRandom(1);
  for (const DType type : kLogitTypes) {
    SCOPED_TRACE(DTypeName(type));
    const Problem problem = type == DType::kFloat32 ? ManyNumbers(RoutingMethod::kTopK, random)
                                                    : EveryNumber(type, RoutingMethod::kTopK);
    const RouteResult result = RunReference(problem);
    for (std::size_t i = 0; i < result.ids.size(); ++i) {
      const float x = problem.Logit(static_cast<std::int64_t>(i / 32), result.ids[i]);
      const float wanted = std::isnan(x) ? -INFINITY : x == 0 ? 0.0f : x;
      ASSERT_EQ(result.weights[i], std::bit_cast<std::uint32_t>(wanted)) << "of " << x;
    }
    ExpectEverywhere(result, problem, {}, type == DType::kFloat32 ? Slow::kSpared : Slow::kToo);
  }
}

TEST_F(RoutingNumerics, SigmoidsAreWithinTheBound) {
  std::mt19937_64 random = RoutingRandom(2);
  double worst = 0;
  for (const DType type : kLogitTypes) {
    SCOPED_TRACE(DTypeName(type));
    const RoutingMethod method = RoutingMethod::kSigmoid;
    const Problem problem =
        type == DType::kFloat32 ? ManyNumbers(method, random) : EveryNumber(type, method);
    const RouteResult result = RunReference(problem);
    for (std::size_t i = 0; i < result.ids.size(); ++i) {
      const float x = problem.Logit(static_cast<std::int64_t>(i / 32), result.ids[i]);
      Bounded exact;
      exact.value = OracleKey(RoutingMethod::kMiniMax2, x, 0.0f).value;
      exact.slack = x < -86.9f ? 1.65e-38 : 0;
      worst = std::max(worst, UlpsOff(exact, result.Weight(i)));
    }
    ExpectEverywhere(result, problem, {}, type == DType::kFloat32 ? Slow::kSpared : Slow::kToo);
  }
  Report("sigmoid", worst, kUlpBounds.sigmoid);
}

// Adding the bias costs one rounding, whatever its size: it is never rounded before.
TEST_F(RoutingNumerics, BiasedKeysAreWithinTheBound) {
  std::mt19937_64 random = RoutingRandom(3);
  for (const BiasFamily family : kBiasFamilies) {
    Problem problem = ManyNumbers(RoutingMethod::kDeepSeekV3, random);
    problem.rows = PlainOr(2048, 256);
    problem.logits.resize(static_cast<std::size_t>(problem.rows) * 32);
    problem.bias = MakeBias(family, problem.experts, random);
    const std::vector<float> keys = KeysOf(problem);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const float x = problem.Logit(0, static_cast<std::int32_t>(i));
      const float bias = problem.bias.empty() ? 0.0f : problem.bias[i % 32];
      const Bounded exact = OracleKey(problem.config.method, x, bias);
      const auto key = static_cast<double>(keys[i]);
      ASSERT_TRUE(key == exact.value || std::fabs(key - exact.value) <= exact.tolerance)
          << key << " for " << exact.value << " of " << x << " and " << bias;
    }
    ExpectEverywhere(RunReference(problem), problem);
  }
}

// Weights are held against their bounds wherever the oracle judges; here by scales of any size.
TEST_F(RoutingNumerics, ScaledWeightsAreWithinTheBound) {
  std::mt19937_64 random = RoutingRandom(8);
  Problem problem = MakeProblem(RoutingMethod::kMiniMax2, 256, 8,
                                {std::begin(kFamilies), std::end(kFamilies)}, random);
  for (const float scale : {1.0f, 2.5f, 0.7f, -1.0f, 0.0f, 1e-30f, 3e38f}) {
    problem.config.scale = scale;
    (void)ExpectRight(problem);
  }
}

// bfloat16 weights are the float32 ones, to nearest, ties to even.
TEST_F(RoutingNumerics, Bfloat16WeightsAreRoundedFloat32Weights) {
  std::mt19937_64 random = RoutingRandom(10);
  for (const MethodInfo& method : AllMethods()) {
    const std::vector<Family> families(std::begin(kFamilies), std::end(kFamilies));
    Problem problem = MakeProblem(method.id, 300, std::min(22, method.max_k), families, random);
    const RouteResult wide = RunReference(problem);
    problem.weight_type = DType::kBfloat16;
    const RouteResult narrow = ExpectRight(problem);
    ASSERT_EQ(narrow.ids, wide.ids) << method.name;
    for (std::size_t i = 0; i < wide.weights.size(); ++i) {
      ASSERT_EQ(narrow.weights[i], Encode(DType::kBfloat16, wide.Weight(i)))
          << method.name << ", " << wide.Weight(i);
    }
  }
}

// Halfway between two bfloat16 numbers, and on either side of that: logits are weights here.
TEST_F(RoutingNumerics, Bfloat16RoundingIsToNearestEven) {
  Problem problem;
  problem.config = {RoutingMethod::kTopK, 1};
  problem.experts = 1;
  problem.weight_type = DType::kBfloat16;
  for (const std::uint32_t high :
       {0x3f80u, 0x3f81u, 0xbf80u, 0xbf81u, 0x0000u, 0x8001u, 0x7f7fu, 0xff7fu, 0x7f00u}) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      problem.logits.push_back(std::bit_cast<float>(high << 16 | low));
  }
  problem.rows = static_cast<std::int64_t>(problem.logits.size());
  const RouteResult result = ExpectRight(problem);
  for (std::size_t i = 0; i < result.weights.size(); ++i) {
    const auto x = static_cast<double>(problem.logits[i]);
    const auto w = static_cast<double>(result.Weight(i));
    if (std::isinf(w)) {
      EXPECT_GE(std::fabs(x), 0x1.ffp127) << x;
      continue;
    }
    const std::uint32_t bits = result.weights[i];
    const double off = std::fabs(w - x);
    for (const std::uint32_t neighbour : {bits - 1, bits + 1}) {
      const auto other = static_cast<double>(Decode(DType::kBfloat16, neighbour & 0xffff));
      if (std::isnan(other)) continue;
      const double other_off = std::fabs(other - x);
      EXPECT_TRUE(off < other_off || (off == other_off && bits % 2 == 0)) << x << " became " << w;
    }
  }
}

}  // namespace
}  // namespace waymark::kernels
