// What a routing call writes and what it leaves alone, however its tensors lie and however many
// rows there are.
//
// RunOn() looks at every byte of every tensor each time: what is not an output's [N, K] must be
// as it was, and the memory before and behind is not there.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/support/sanitizers.h"
#include "tests/unit/kernels/routing_inputs.h"
#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

class RoutingOutputs : public RoutingSuite {};

std::vector<Family> Mixed(std::int64_t rows) {
  std::vector<Family> families;
  for (std::int64_t row = 0; row < rows; ++row)
    families.push_back(kFamilies[static_cast<std::size_t>(row) % std::size(kFamilies)]);
  return families;
}

// Buffers that are there, as a graph has them, stay as they are.
TEST_F(RoutingOutputs, NoRowsWriteNothing) {
  std::mt19937_64 random = RoutingRandom(400);
  for (const MethodInfo& method : AllMethods()) {
    Problem problem = MakeProblem(method.id, 64, std::min(8, method.max_k), {}, random);
    ExpectEverywhere(RunReference(problem), problem, Layout{0, 5, true});
  }
}

TEST_F(RoutingOutputs, TheSameWithAndWithoutRecording) {
  std::mt19937_64 random = RoutingRandom(401);
  for (const MethodInfo& method : AllMethods()) {
    for (const std::int32_t experts : {8, 64, 256, 384, 1024}) {
      Problem problem =
          MakeProblem(method.id, experts, std::min(8, method.max_k), Mixed(15), random);
      if (method.takes_bias) problem.bias = MakeBias(BiasFamily::kOffset, experts, random);
      const RouteResult recorded = RunReference(problem);
      RouteResult silent = recorded;
      silent.recorded.clear();
      problem.record = false;
      ExpectEverywhere(silent, problem);
      problem.record = true;
      ExpectEverywhere(recorded, problem);
    }
  }
}

// Rows apart, rows to spare, rows at odd addresses: the same answer, and nothing else is touched.
TEST_F(RoutingOutputs, HoweverTensorsLie) {
  std::mt19937_64 random = RoutingRandom(402);
  for (const MethodInfo& method : AllMethods()) {
    for (const std::int32_t experts : {5, 33, 128, 256, 300, 512, 1023, 1024}) {
      for (const std::int32_t k : TopKs(method, experts)) {
        Problem problem = MakeProblem(method.id, experts, k, Mixed(5), random);
        problem.logit_type = kLogitTypes[random() % 3];
        problem.weight_type = kWeightTypes[random() % 2];
        const std::int64_t replayed = random() % 2 == 0 ? problem.rows : 0;
        for (std::int64_t row = 0; row < replayed; ++row)
          AppendReplayRow(row % 2 == 0, experts, k, random, problem.replay);
        const RouteResult result = RunReference(problem);
        for (const std::int64_t gap : {0, 1, 3, 8}) {
          for (const std::int64_t spare : {0, 3}) {
            const Slow slow = random() % PlainOr(1, 6) == 0 ? Slow::kToo : Slow::kSpared;
            const auto behind = static_cast<std::int64_t>(random() % 3);
            ExpectEverywhere(result, problem, Layout{gap, spare, random() % 2 == 0, behind}, slow);
          }
        }
        if (HasFailure()) return;
      }
    }
  }
}
TEST_F(RoutingOutputs, AnyNumberOfRows) {
  std::mt19937_64 random = RoutingRandom(404);
  for (const MethodInfo& method : AllMethods()) {
    for (const std::int64_t rows :
         PlainOr<std::vector<std::int64_t>>({1,  2,  3,  4,  5,  7,   8,   9,   15,  16,   17,
                                             31, 32, 33, 63, 65, 127, 129, 255, 257, 1023, 1025},
                                            {1, 3, 8, 31, 129})) {
      for (const std::int32_t experts : {16, 256}) {
        ExpectRight(MakeProblem(method.id, experts, std::min(4, method.max_k), Mixed(rows), random),
                    rows < 64 ? Slow::kToo : Slow::kSpared);
      }
      if (HasFailure()) return;
    }
  }
}
// A row alone, and among others: no variant is chosen by N that gives something else, bit for bit.
TEST_F(RoutingOutputs, ARowDoesNotDependOnTheOthers) {
  std::mt19937_64 random = RoutingRandom(501);
  const auto rows_of = [](const auto& all, const std::vector<std::int64_t>& rows,
                          std::int32_t top_k) {
    auto some = all;
    some.clear();
    for (const std::int64_t row : rows)
      some.insert(some.end(), all.begin() + row * top_k, all.begin() + (row + 1) * top_k);
    return some;
  };
  for (const MethodInfo& method : AllMethods()) {
    for (const std::int32_t experts :
         PlainOr<std::vector<std::int32_t>>({8, 128, 300, 1024}, {8, 300})) {
      const std::int32_t k = std::min(8, method.max_k);
      Problem problem = MakeProblem(method.id, experts, k, Mixed(15), random);
      if (method.takes_bias) problem.bias = MakeBias(BiasFamily::kOffset, experts, random);
      const RouteResult all = RunReference(problem);
      std::vector<std::vector<std::int64_t>> selections(1);
      for (std::int64_t i = 0; i < PlainOr(600, 100); ++i)
        selections[0].push_back(static_cast<std::int64_t>(random()) & 7);
      for (std::int64_t row = 0; row < problem.rows; ++row)
        selections.push_back({row});
      for (const std::vector<std::int64_t>& rows : selections) {
        RouteResult wanted;
        wanted.weight_type = all.weight_type;
        wanted.ids = rows_of(all.ids, rows, k);
        wanted.weights = rows_of(all.weights, rows, k);
        wanted.recorded = rows_of(all.recorded, rows, k);
        ExpectEverywhere(wanted, problem.Rows(rows));
      }
      if (HasFailure()) return;
    }
  }
}
// More rows than CUDA's grids have blocks in y and z.
TEST_F(RoutingOutputs, MoreRowsThan65535) {
  std::mt19937_64 random = RoutingRandom(405);
  for (const MethodInfo& method : AllMethods()) {
    if (PlainOr(false, method.id != RoutingMethod::kDeepSeekV3)) continue;
    Problem problem = MakeProblem(method.id, 4, std::min(2, method.max_k), Mixed(1000), random);
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < 65536 + 77; ++row)
      rows.push_back(row % 1000);
    const Problem many = problem.Rows(rows);
    const RouteResult few = RunReference(problem);
    const RouteResult result = RunReference(many);
    const auto k = static_cast<std::size_t>(problem.config.top_k);
    for (std::size_t i = 0; i < result.ids.size(); ++i) {
      ASSERT_EQ(result.ids[i], few.ids[i % (1000 * k)]);
      ASSERT_EQ(result.weights[i], few.weights[i % (1000 * k)]);
    }
    ExpectEverywhere(result, many, {},
                     method.id == RoutingMethod::kTopK ? Slow::kToo : Slow::kSpared);
  }
}

}  // namespace
}  // namespace waymark::kernels
