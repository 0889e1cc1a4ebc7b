// Two calls that must agree: what a row gives depends on its numbers and on nothing else.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tests/unit/kernels/routing_inputs.h"
#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class RoutingMetamorphic : public RoutingSuite, public testing::WithParamInterface<MethodInfo> {
 protected:
  // Rows of every family; a bias, groups and a scale where the method takes them.
  static Problem Make(std::int32_t experts, std::mt19937_64& random) {
    const MethodInfo& method = GetParam();
    Problem problem = MakeProblem(method.id, experts, std::min({8, experts, method.max_k}),
                                  {std::begin(kFamilies), std::end(kFamilies)}, random);
    if (method.takes_bias) problem.bias = MakeBias(BiasFamily::kOffset, experts, random);
    if (method.takes_groups && experts % 4 == 0) {
      problem.config.num_groups = 4;
      problem.config.topk_groups = std::max(2, LeastTopKGroups(experts, 4, problem.config.top_k));
    }
    if (method.takes_scale) problem.config.scale = 2.5f;
    return problem;
  }

  // Of a whole answer, the rows `which` in that order.
  static RouteResult RowsOf(const RouteResult& result, const std::vector<std::int64_t>& which,
                            std::int32_t top_k) {
    RouteResult some;
    some.weight_type = result.weight_type;
    for (const std::int64_t row : which) {
      for (std::int64_t i = row * top_k; i < (row + 1) * top_k; ++i) {
        const auto at = static_cast<std::size_t>(i);
        some.ids.push_back(result.ids[at]);
        some.weights.push_back(result.weights[at]);
        if (!result.recorded.empty()) some.recorded.push_back(result.recorded[at]);
      }
      if (!result.routed.empty()) {
        some.routed.push_back(result.routed[static_cast<std::size_t>(row)]);
      }
    }
    return some;
  }
};

INSTANTIATE_TEST_SUITE_P(, RoutingMetamorphic, testing::ValuesIn(AllMethods()),
                         [](const auto& method) { return method.param.name; });

TEST_P(RoutingMetamorphic, RowsInAnotherOrderGiveRowsInThatOrder) {
  std::mt19937_64 random = RoutingRandom(500);
  for (const std::int32_t experts : {8, 100, 256, 1024}) {
    Problem problem = Make(experts, random);
    for (std::int64_t row = 0; row < problem.rows; ++row)
      AppendReplayRow(row % 3 != 0, experts, problem.config.top_k, random, problem.replay);
    std::vector<std::int64_t> order(static_cast<std::size_t>(problem.rows));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[random() % i]);
    const RouteResult wanted = RowsOf(RunReference(problem), order, problem.config.top_k);
    ExpectEverywhere(wanted, problem.Rows(order));
  }
}

// A row alone, and the first few of them: no variant is chosen by N that gives something else.
TEST_P(RoutingMetamorphic, ARowDoesNotDependOnTheNumberOfRows) {
  std::mt19937_64 random = RoutingRandom(501);
  for (const std::int32_t experts :
       PlainOr<std::vector<std::int32_t>>({8, 128, 300, 1024}, {8, 300})) {
    const Problem problem = Make(experts, random);
    const RouteResult all = RunReference(problem);
    for (std::int64_t row = 0; row < problem.rows; ++row) {
      ExpectEverywhere(RowsOf(all, {row}, problem.config.top_k), problem.Rows({row}));
    }
    std::vector<std::int64_t> many;
    for (std::int64_t i = 0; i < PlainOr(600, 100); ++i)
      many.push_back(i % problem.rows);
    ExpectEverywhere(RowsOf(all, many, problem.config.top_k), problem.Rows(many));
    if (HasFailure()) return;
  }
}

// float32 holding numbers of a narrow type gives what the narrow type gives.
TEST_P(RoutingMetamorphic, TheTypeThatHoldsALogitDoesNotMatter) {
  std::mt19937_64 random = RoutingRandom(502);
  for (const std::int32_t experts : {8, 33, 256, 1000}) {
    for (const DType narrow : {DType::kBfloat16, DType::kFloat16}) {
      Problem problem = Make(experts, random);
      problem.logit_type = narrow;
      const RouteResult wanted = RunReference(problem);
      ExpectEverywhere(wanted, problem);
      for (float& x : problem.logits)
        x = Rounded(narrow, x);
      problem.logit_type = DType::kFloat32;
      ExpectEverywhere(wanted, problem);
    }
  }
}

// Experts behind the others that can never be selected: the same ids, and the same weights bit for
// bit, in a larger tier, too; the sum over all has zeros more, in the same columns. Rows of nothing
// but -inf and NaN are left out: to them, the new ones are as good as the old ones.
TEST_P(RoutingMetamorphic, ExpertsOfMinusInfinityChangeNothing) {
  std::mt19937_64 random = RoutingRandom(503);
  for (const std::int32_t experts : {8, 33, 128, 200, 512}) {
    for (const std::int32_t more : {1, 24, 128, 512}) {
      Problem problem = Make(experts, random);
      problem.config.num_groups = problem.config.topk_groups = 1;
      std::vector<std::int64_t> rows;
      for (std::int64_t row = 0; row < problem.rows; ++row) {
        const auto begin = problem.logits.begin() + row * experts;
        if (std::any_of(begin, begin + experts, [](float logit) { return logit > -kInf; })) {
          rows.push_back(row);
        }
      }
      problem = problem.Rows(rows);
      const RouteResult wanted = RunReference(problem);
      Problem larger = problem;
      larger.experts = experts + more;
      larger.logits.clear();
      for (std::int64_t row = 0; row < problem.rows; ++row) {
        const auto begin = problem.logits.begin() + row * experts;
        larger.logits.insert(larger.logits.end(), begin, begin + experts);
        larger.logits.insert(larger.logits.end(), static_cast<std::size_t>(more), -kInf);
      }
      if (!larger.bias.empty()) larger.bias.resize(static_cast<std::size_t>(larger.experts), -kInf);
      ExpectEverywhere(wanted, larger);
      if (HasFailure()) return;
    }
  }
}

// A scale of twice the size is weights of twice the size; of the negative, the negative.
TEST_P(RoutingMetamorphic, TheScaleScales) {
  if (!GetParam().takes_scale) return;
  std::mt19937_64 random = RoutingRandom(504);
  Problem problem = Make(256, random);
  problem.config.scale = 1.25f;
  const RouteResult once = RunReference(problem);
  for (const float factor : {2.0f, -1.0f, 0.5f}) {
    problem.config.scale = 1.25f * factor;
    const RouteResult scaled = ExpectRight(problem);
    ASSERT_EQ(scaled.ids, once.ids);
    for (std::size_t i = 0; i < once.weights.size(); ++i)
      ASSERT_EQ(scaled.Weight(i), once.Weight(i) * factor);
  }
}

// A softmax does not change when all logits do by as much: here without rounding, so bit for bit.
TEST_P(RoutingMetamorphic, ASoftmaxDoesNotKnowAnOffset) {
  if (GetParam().id != RoutingMethod::kDefault && GetParam().id != RoutingMethod::kRenormalize) {
    return;
  }
  std::mt19937_64 random = RoutingRandom(505);
  for (const std::int32_t experts : {8, 100, 1024}) {
    Problem problem =
        MakeProblem(GetParam().id, experts, 8, {Family::kTieFree, Family::kQuantised}, random);
    const RouteResult wanted = RunReference(problem);
    for (float& x : problem.logits)
      x += 512.0f;
    ExpectEverywhere(wanted, problem);
  }
}

// A threshold moved between two calls: the selection for K is the beginning of that for K + 1.
TEST_P(RoutingMetamorphic, FewerExpertsAreTheFirstOfMore) {
  std::mt19937_64 random = RoutingRandom(506);
  for (const std::int32_t experts : PlainOr<std::vector<std::int32_t>>({32, 160, 1024}, {160})) {
    Problem problem = Make(experts, random);
    problem.config.num_groups = problem.config.topk_groups = 1;
    std::vector<RouteResult> answers;
    for (std::int32_t k = 1; k <= GetParam().max_k; ++k) {
      problem.config.top_k = k;
      answers.push_back(RunReference(problem));
      ExpectEverywhere(answers.back(), problem);
    }
    for (std::size_t more = 1; more < answers.size(); ++more) {
      for (std::size_t i = 0; i < answers[more - 1].ids.size(); ++i) {
        const std::size_t row = i / more;
        ASSERT_EQ(answers[more - 1].ids[i], answers[more].ids[row * (more + 1) + i % more]);
      }
    }
  }
}

}  // namespace
}  // namespace waymark::kernels
