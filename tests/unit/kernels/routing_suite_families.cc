// Families of rows (routing_inputs.h), each through every method; and the rules of order, ties and
// what is not finite, written out as examples.
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tests/unit/kernels/routing_inputs.h"
#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// ---- every family through every method

class RoutingFamilies : public RoutingSuite, public testing::WithParamInterface<Family> {};

// Whatever the row: distinct ids in [0, E), no NaN among the weights.
void ExpectSane(const Problem& problem, const RouteResult& result) {
  const auto k = static_cast<std::size_t>(problem.config.top_k);
  for (std::size_t row = 0; row < static_cast<std::size_t>(problem.rows); ++row) {
    const auto begin = result.ids.begin() + static_cast<std::ptrdiff_t>(row * k);
    const std::set<std::int32_t> distinct(begin, begin + static_cast<std::ptrdiff_t>(k));
    ASSERT_EQ(distinct.size(), k) << problem.ToString();
    ASSERT_GE(*distinct.begin(), 0) << problem.ToString();
    ASSERT_LT(*distinct.rbegin(), problem.experts) << problem.ToString();
  }
  for (std::size_t i = 0; i < result.weights.size(); ++i)
    ASSERT_FALSE(std::isnan(result.Weight(i))) << problem.ToString();
}

TEST_P(RoutingFamilies, EveryMethod) {
  const Family family = GetParam();
  std::mt19937_64 random = RoutingRandom(100 + static_cast<std::uint64_t>(family));
  std::size_t turn = 0;
  for (const MethodInfo& method : AllMethods()) {
    for (const std::int32_t experts : PlainOr<std::vector<std::int32_t>>(
             {1, 2, 5, 33, 127, 128, 257, 512, 1023, 1024}, {1, 33, 257, 1024})) {
      for (const std::int32_t k : TopKs(method, experts)) {
        Problem problem =
            MakeProblem(method.id, experts, k, std::vector<Family>(4, family), random);
        problem.logit_type = kLogitTypes[turn % 3];
        problem.weight_type = kWeightTypes[turn % 2];
        if (method.takes_bias) {
          problem.bias = MakeBias(kBiasFamilies[turn % std::size(kBiasFamilies)], experts, random);
        }
        ++turn;
        ASSERT_NO_FATAL_FAILURE(ExpectSane(problem, ExpectRight(problem)));
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, RoutingFamilies, testing::ValuesIn(kFamilies),
                         [](const auto& family) { return FamilyName(family.param); });

// ---- examples

class RoutingOrder : public RoutingSuite {};

// One row, through every backend. The oracle agrees, and so does what is written here.
void ExpectIds(Problem problem, const std::vector<float>& logits,
               const std::vector<std::int32_t>& ids) {
  problem.experts = static_cast<std::int32_t>(logits.size());
  problem.rows = 1;
  problem.logits = logits;
  problem.config.top_k = static_cast<std::int32_t>(ids.size());
  for (const DType type : kLogitTypes) {
    problem.logit_type = type;
    EXPECT_EQ(ExpectRight(problem).ids, ids) << problem.ToString();
  }
}
Problem Of(RoutingMethod method) {
  Problem problem;
  problem.config.method = method;
  return problem;
}

TEST_F(RoutingOrder, GreatestFirst) {
  ExpectIds(Of(RoutingMethod::kRenormalize), {1, 5, -2, 4, 3}, {1, 3, 4, 0});
}
TEST_F(RoutingOrder, OfEqualKeysTheLowestIdFirst) {
  ExpectIds(Of(RoutingMethod::kRenormalize), {1, 2, 1, 2, 1, 2}, {1, 3, 5, 0, 2});
}
// Sums of sigmoid and bias that are equal though neither part is.
TEST_F(RoutingOrder, OfEqualBiasedKeysTheLowestIdFirst) {
  Problem problem = Of(RoutingMethod::kMiniMax2);
  problem.bias = {0.0f, 0.5f, 0.5f, -0.5f, 1.0f};  // sigmoid(-inf) = 0, (0) = 0.5, (+inf) = 1
  ExpectIds(problem, {kInf, 0, 0, kInf, -kInf}, {0, 1, 2, 4, 3});
}
// The order is by key; the weights are of the sigmoid, and need not fall.
TEST_F(RoutingOrder, BiasedMethodsRankByKeyAndNotByWeight) {
  Problem problem = Of(RoutingMethod::kMiniMax2);
  problem.bias = {0.0f, 3.0f, 0.0f};
  ExpectIds(problem, {1, -1, 2}, {1, 2, 0});
}
TEST_F(RoutingOrder, MinusZeroEqualsPlusZero) {
  ExpectIds(Of(RoutingMethod::kTopK), {-0.0f, 0.0f, -0.0f, 0.0f}, {0, 1, 2, 3});
  ExpectIds(Of(RoutingMethod::kTopK), {-1, 0.0f, -0.0f, 0.0f, -0.0f}, {1, 2, 3, 4, 0});
}
// A key of -0: sigmoid and bias that cancel, to either zero.
TEST_F(RoutingOrder, MinusZeroKeysEqualPlusZeroKeys) {
  Problem problem = Of(RoutingMethod::kMiniMax2);
  problem.bias = {-0.0f, -0.5f, 0.0f, -0.0f};
  ExpectIds(problem, {-kInf, 0, -kInf, -kInf}, {0, 1, 2, 3});
}
TEST_F(RoutingOrder, NaNCountsAsMinusInfinity) {
  ExpectIds(Of(RoutingMethod::kRenormalize), {kNaN, 1, -kNaN, -3}, {1, 3, 0, 2});
  ExpectIds(Of(RoutingMethod::kRenormalize), {-kInf, kNaN, -kInf, -kNaN, 7}, {4, 0, 1, 2, 3});
}
TEST_F(RoutingOrder, InfinitiesAreTheEnds) {
  ExpectIds(Of(RoutingMethod::kRenormalize), {-kInf, 3, kInf, -kInf, kInf}, {2, 4, 1, 0, 3});
}
TEST_F(RoutingOrder, SubnormalLogitsAreToldApart) {
  Problem problem = Of(RoutingMethod::kTopK);
  problem.config.top_k = 4;
  problem.rows = 1;
  problem.experts = 4;
  problem.logits = {0x1p-149f, 0x1p-148f, -0x1p-149f, 0.0f};
  const RouteResult result = ExpectRight(problem);
  EXPECT_EQ(result.ids, (std::vector<std::int32_t>{1, 0, 3, 2}));
  EXPECT_EQ(result.Weight(0), 0x1p-148f);
}
// A bias of NaN or -inf takes its expert out, for as long as others are left.
TEST_F(RoutingOrder, ABrokenBiasComesLast) {
  for (const RoutingMethod method : {RoutingMethod::kMiniMax2, RoutingMethod::kDeepSeekV3}) {
    Problem problem = Of(method);
    problem.bias = {kNaN, -100, -kInf, 0, -kNaN};
    ExpectIds(problem, {9, 1, 9, 1, 9}, {3, 1, 0, 2, 4});
  }
}

// ---- groups

class RoutingGroups : public RoutingSuite {};

Problem Grouped(std::int32_t num_groups, std::int32_t topk_groups) {
  Problem problem = Of(RoutingMethod::kDeepSeekV3);
  problem.config.num_groups = num_groups;
  problem.config.topk_groups = topk_groups;
  return problem;
}

TEST_F(RoutingGroups, OnlyTheBestGroupsAreSelectedFrom) {
  // Group 1 has the best expert, group 0 the best two together.
  ExpectIds(Grouped(2, 1), {1, 1, -9, 2, -9, -9}, {0, 1, 2});
}
TEST_F(RoutingGroups, OfEqualGroupsTheLowestIsKept) {
  ExpectIds(Grouped(4, 2), {0, 0, 1, 1, 1, 1, 1, 1}, {2, 3, 4, 5});
  ExpectIds(Grouped(4, 1), {3, 1, 1, 3, 3, 1, 1, 3}, {0, 1});
}
// Its two greatest keys, not its two greatest distinct keys.
TEST_F(RoutingGroups, AMaximumThatComesTwiceCountsTwice) {
  Problem problem = Grouped(2, 1);
  problem.bias = {0.5f, 0.5f, 0.0f, 0.75f, 0.125f, 0.0f};  // 1 + 1 against 1.25 + 0.625
  ExpectIds(problem, {0, 0, -kInf, 0, 0, -kInf}, {0, 1, 2});
}
TEST_F(RoutingGroups, OfAGroupOfOneTheKeyIsTheScore) {
  ExpectIds(Grouped(4, 2), {0, 3, 1, 2}, {1, 3});
  ExpectIds(Grouped(4, 3), {5, 5, 5, 5}, {0, 1, 2});
  // -1e30 is below every key but -inf: a missing second key does not count as 0 or as -inf.
  Problem problem = Grouped(3, 2);
  problem.bias = {-1e30f, -kInf, -2e30f};
  ExpectIds(problem, {0, 0, 0}, {0, 2});
}
TEST_F(RoutingGroups, EveryNumberOfGroups) {
  std::mt19937_64 random = RoutingRandom(200);
  for (const std::int32_t experts :
       {1, 2, 32, 33, 96, 100, 128, 180, 256, 300, 384, 512, 620, 1000, 1024}) {
    for (const std::int32_t groups : GroupCounts(experts)) {
      for (const std::int32_t k : {1, 8, 32}) {
        if (k > experts) continue;
        for (std::int32_t kept = LeastTopKGroups(experts, groups, k); kept <= groups;
             kept += 1 + groups / 4) {
          Problem problem = MakeProblem(
              RoutingMethod::kDeepSeekV3, experts, k,
              {Family::kTieFree, Family::kQuantised, Family::kSomeNaN, Family::kFewFinite}, random);
          problem.config.num_groups = groups;
          problem.config.topk_groups = kept;
          problem.bias =
              MakeBias(kBiasFamilies[random() % std::size(kBiasFamilies)], experts, random);
          ExpectRight(problem, random() % PlainOr(1, 6) == 0 ? Slow::kToo : Slow::kSpared);
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace waymark::kernels
