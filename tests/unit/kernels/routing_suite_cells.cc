// One cell for every variant that a dispatcher can reach: methods x types of logits x tiers x types
// of weights x with and without recording x replay, from the same table that dispatch uses.
#include <vector>

#include "kernels/routing_policy.h"
#include "tests/support/sanitizers.h"
#include "tests/unit/kernels/routing_inputs.h"
#include "tests/unit/kernels/routing_oracle.h"
#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

class RoutingCells : public RoutingSuite, public testing::WithParamInterface<MethodInfo> {};

struct Variant {
  DType logit_type;
  DType weight_type;
  bool record;
  bool replay;
};

std::vector<Variant> AllVariants() {
  std::vector<Variant> variants;
  for (const DType logits : kLogitTypes) {
    for (const DType weights : kWeightTypes) {
      for (const bool record : {false, true}) {
        for (const bool replay : {false, true})
          variants.push_back({logits, weights, record, replay});
      }
    }
  }
  return variants;
}

// E and K, and groups where there are some.
struct Size {
  std::int32_t experts, top_k, num_groups, topk_groups;
};

std::vector<Size> SizesOf(const MethodInfo& method, std::int32_t tier, std::mt19937_64& random) {
  std::vector<Size> sizes;
  for (const std::int32_t experts : kExpertCounts) {
    if (routing::Tiers::Of(experts) != tier) continue;
    for (const std::int32_t k : TopKs(method, experts)) {
      sizes.push_back({experts, k, 1, 1});
      const std::vector<std::int32_t> counts = GroupCounts(experts);
      if (!method.takes_groups || counts.size() < 2) continue;
      const std::int32_t groups = counts[1 + random() % (counts.size() - 1)];
      const std::int32_t least = LeastTopKGroups(experts, groups, k);
      const auto kept = least + static_cast<std::int32_t>(
                                    random() % static_cast<std::uint64_t>(groups - least + 1));
      sizes.push_back({experts, k, groups, kept});
    }
  }
  return sizes;
}

Problem MakeCell(const MethodInfo& method, const Size& size, const Variant& variant,
                 std::mt19937_64& random) {
  constexpr std::int64_t kRows = 4;
  std::vector<Family> families = {Family::kTieFree, Family::kQuantised};
  while (families.size() < kRows)
    families.push_back(kFamilies[random() % std::size(kFamilies)]);
  Problem cell = MakeProblem(method.id, size.experts, size.top_k, families, random);
  cell.config.num_groups = size.num_groups;
  cell.config.topk_groups = size.topk_groups;
  if (method.takes_scale && random() % 2 == 0) cell.config.scale = 2.5f;
  if (method.id == RoutingMethod::kSigmoidRenorm) cell.config.normalize = random() % 2 == 0;
  cell.logit_type = variant.logit_type;
  cell.weight_type = variant.weight_type;
  cell.record = variant.record;
  if (method.takes_bias) {
    cell.bias = MakeBias(kBiasFamilies[random() % std::size(kBiasFamilies)], size.experts, random);
  }
  for (std::int64_t row = 0; variant.replay && row < kRows; ++row)
    AppendReplayRow(row % 2 == 1, size.experts, size.top_k, random, cell.replay);
  return cell;
}

// Slow backends run one size of each variant, chosen by the seed; the others all of them, or under
// a sanitizer every fourth.
TEST_P(RoutingCells, EveryVariantIsRight) {
  const MethodInfo& method = GetParam();
  std::mt19937_64 random = RoutingRandom(static_cast<std::uint64_t>(method.id));
  std::size_t cells = 0;
  for (const std::int32_t tier : routing::Tiers::kAll) {
    const std::vector<Size> sizes = SizesOf(method, tier, random);
    ASSERT_FALSE(sizes.empty()) << "no E of the grid is of tier " << tier;
    for (const Variant& variant : AllVariants()) {
      const std::size_t sampled = random() % sizes.size();
      constexpr std::size_t kStride = PlainOr(1, 12);
      for (std::size_t s = sampled % kStride; s < sizes.size(); s += kStride) {
        const Problem cell = MakeCell(method, sizes[s], variant, random);
        const RouteResult result = RunReference(cell);
        ASSERT_EQ(Judge(cell, KeysOf(cell), result), "") << cell.ToString();
        for (const auto& backend : RoutingBackends()) {
          if (backend->slow() && s != sampled) continue;
          SCOPED_TRACE(backend->name() + ": " + cell.ToString());
          ASSERT_NO_FATAL_FAILURE(ExpectSame(result, RunOn(*backend, cell), cell));
          ++cells;
        }
      }
    }
  }
  RecordProperty("cells", static_cast<int>(cells));
}

INSTANTIATE_TEST_SUITE_P(, RoutingCells, testing::ValuesIn(AllMethods()),
                         [](const auto& method) { return method.param.name; });

// A method with a number but without a row would go through no cell.
TEST_F(RoutingSuite, EveryMethodHasARow) {
  ASSERT_EQ(AllMethods().size(), static_cast<std::size_t>(kNumRoutingMethods));
  for (std::size_t i = 0; i < AllMethods().size(); ++i)
    EXPECT_EQ(static_cast<std::size_t>(AllMethods()[i].id), i);
}

}  // namespace
}  // namespace waymark::kernels
