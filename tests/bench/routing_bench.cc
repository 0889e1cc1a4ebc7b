// Routing on the host, nanoseconds a row, beside what an engine's own C++ would do: pairs of key
// and id, std::nth_element and std::sort for the greatest K, expf and sums of floats in any order.
//
// Names: method/E/K/groups kept of groups/rows/what is done with the ids.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/routing.h"
#include "tests/bench/bench_common.h"

namespace waymark::bench {
namespace {

using kernels::RoutingConfig;
using kernels::RoutingMethod;
using kernels::RoutingTensors;
using kernels::Tensor;

enum class Ids { kPlain, kRecorded, kReplayed };

struct Cell {
  std::int32_t experts;
  std::int32_t top_k;
  std::int32_t groups = 1;
  std::int32_t kept = 1;
};

class Inputs {
 public:
  Inputs(const Cell& cell, std::int64_t rows) : cell_(cell), rows_(rows) {
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    logits_.resize(static_cast<std::size_t>(rows * cell.experts));
    for (float& x : logits_)
      x = normal(random);
    bias_.resize(static_cast<std::size_t>(cell.experts));
    for (float& b : bias_)
      b = 0.01f * normal(random);
    const auto outputs = static_cast<std::size_t>(rows * cell.top_k);
    ids_.resize(outputs);
    weights_.resize(outputs);
    replay_.resize(outputs);
    routed_.resize(static_cast<std::size_t>(rows));
  }

  [[nodiscard]] RoutingTensors Tensors(bool bias, Ids what) {
    RoutingTensors tensors;
    tensors.logits = Tensor::Matrix(logits_.data(), kernels::DType::kFloat32, rows_, cell_.experts);
    if (bias) tensors.bias = Tensor::Vector(bias_.data(), kernels::DType::kFloat32, cell_.experts);
    tensors.topk_ids = Tensor::Matrix(ids_.data(), kernels::DType::kInt32, rows_, cell_.top_k);
    tensors.topk_weights =
        Tensor::Matrix(weights_.data(), kernels::DType::kFloat32, rows_, cell_.top_k);
    const Tensor replay =
        Tensor::Matrix(replay_.data(), kernels::DType::kInt16, rows_, cell_.top_k);
    if (what == Ids::kRecorded) tensors.replay_out = replay;
    if (what == Ids::kReplayed) {
      tensors.replay_in = replay;
      tensors.routed = Tensor::Vector(routed_.data(), kernels::DType::kUint8, rows_);
    }
    return tensors;
  }

  // The same routing, as one would write it.
  void Baseline(const RoutingConfig& config) {
    using Pair = std::pair<float, std::int32_t>;
    const auto before = [](const Pair& a, const Pair& b) {
      return a.first > b.first || (a.first == b.first && a.second < b.second);
    };
    const auto sigmoid = [](float x) { return 1.0f / (1.0f + std::exp(-x)); };
    const bool deepseek = config.method == RoutingMethod::kDeepSeekV3;
    std::array<Pair, kernels::kMaxExperts> pairs;
    std::array<float, kernels::kMaxExperts> scores;
    const std::int32_t size = cell_.experts / cell_.groups;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const float* const x = logits_.data() + row * cell_.experts;
      for (std::int32_t e = 0; e < cell_.experts; ++e) {
        const auto i = static_cast<std::size_t>(e);
        scores[i] = deepseek ? sigmoid(x[e]) : x[e];
        pairs[i] = {scores[i] + (deepseek ? bias_[i] : 0.0f), e};
      }
      auto end = pairs.begin() + cell_.experts;
      if (cell_.groups > 1) {
        std::array<Pair, kernels::kMaxGroups> best;
        for (std::int32_t g = 0; g < cell_.groups; ++g) {
          float first = -HUGE_VALF, second = -HUGE_VALF;
          for (std::int32_t e = g * size; e < (g + 1) * size; ++e) {
            const float key = pairs[static_cast<std::size_t>(e)].first;
            second = std::max(second, std::min(first, key));
            first = std::max(first, key);
          }
          best[static_cast<std::size_t>(g)] = {first + second, g};
        }
        std::nth_element(best.begin(), best.begin() + cell_.kept, best.begin() + cell_.groups,
                         before);
        std::sort(best.begin(), best.begin() + cell_.kept,
                  [](const Pair& a, const Pair& b) { return a.second < b.second; });
        end = pairs.begin();
        for (std::int32_t i = 0; i < cell_.kept; ++i) {
          const auto from = pairs.begin() + best[static_cast<std::size_t>(i)].second * size;
          end = std::copy(from, from + size, end);
        }
      }
      std::nth_element(pairs.begin(), pairs.begin() + cell_.top_k - 1, end, before);
      std::sort(pairs.begin(), pairs.begin() + cell_.top_k, before);
      float sum = deepseek ? 1e-20f : 0.0f;
      const float most = pairs[0].first;
      if (config.method == RoutingMethod::kDefault) {
        for (std::int32_t e = 0; e < cell_.experts; ++e)
          sum += std::exp(x[e] - most);
      }
      std::int32_t* const ids = ids_.data() + row * cell_.top_k;
      float* const weights = weights_.data() + row * cell_.top_k;
      for (std::int32_t k = 0; k < cell_.top_k; ++k) {
        const auto [key, id] = pairs[static_cast<std::size_t>(k)];
        ids[k] = id;
        weights[k] = deepseek ? scores[static_cast<std::size_t>(id)] : std::exp(key - most);
        if (config.method != RoutingMethod::kDefault) sum += weights[k];
      }
      for (std::int32_t k = 0; k < cell_.top_k; ++k)
        weights[k] *= config.scale / sum;
    }
  }

  [[nodiscard]] const std::vector<std::int32_t>& ids() const { return ids_; }
  [[nodiscard]] const std::vector<std::uint8_t>& routed() const { return routed_; }

 private:
  const Cell cell_;
  const std::int64_t rows_;
  std::vector<float> logits_, bias_, weights_;
  std::vector<std::int32_t> ids_;
  std::vector<std::int16_t> replay_;
  std::vector<std::uint8_t> routed_;
};

void Route(benchmark::State& state, RoutingConfig config, const Cell& cell, std::int64_t rows,
           Ids what) {
  Inputs inputs(cell, rows);
  const bool bias = config.method == RoutingMethod::kDeepSeekV3;
  Demand(RouteOnHost(config, inputs.Tensors(bias, Ids::kRecorded)).ok(), "not routed");
  const auto routed = inputs.ids();
  inputs.Baseline(config);
  // Rounding may merge or part what lies close: the two need not agree everywhere.
  std::size_t same = 0;
  for (std::size_t i = 0; i < routed.size(); ++i)
    same += routed[i] == inputs.ids()[i] ? 1 : 0;
  Demand(same * 1000 >= routed.size() * 995, "the baseline selects other experts");

  const RoutingTensors tensors = inputs.Tensors(bias, what);
  Times times(static_cast<std::size_t>(state.max_iterations));
  Times baseline(static_cast<std::size_t>(state.max_iterations));
  for (auto _ : state) {
    const double routing = Time([&] {
      benchmark::DoNotOptimize(RouteOnHost(config, tensors));
      benchmark::ClobberMemory();
    });
    times.Add(routing);
    baseline.Add(Time([&] {
      inputs.Baseline(config);
      benchmark::ClobberMemory();
    }));
    state.SetIterationTime(routing / 1e9);
  }
  if (what == Ids::kReplayed) {
    Demand(std::count(inputs.routed().begin(), inputs.routed().end(), 0) == rows, "not replayed");
  }
  const double part = rows <= 64 ? 0.5 : 0.1;  // of calls; measure.h says why
  const auto nanoseconds_a_row = [&](const Times& all) {
    return all.Micros(part) * 1000.0 / static_cast<double>(rows);
  };
  state.counters["ns_row"] = nanoseconds_a_row(times);
  state.counters["baseline_ns_row"] = nanoseconds_a_row(baseline);
  state.counters["speedup"] = nanoseconds_a_row(baseline) / nanoseconds_a_row(times);
}

[[maybe_unused]] const bool kRegistered = [] {
  constexpr Cell kCells[] = {{128, 8},  {256, 8},  {256, 8, 8, 4}, {384, 8},
                             {512, 10}, {512, 22}, {1024, 32}};
  constexpr std::pair<Ids, const char*> kWhat[] = {
      {Ids::kPlain, "plain"}, {Ids::kRecorded, "recorded"}, {Ids::kReplayed, "replayed"}};
  for (const RoutingMethod method :
       {RoutingMethod::kDeepSeekV3, RoutingMethod::kRenormalize, RoutingMethod::kDefault}) {
    for (const Cell& cell : kCells) {
      if (cell.groups > 1 && method != RoutingMethod::kDeepSeekV3) continue;
      for (const std::int64_t rows : {64, 4096}) {
        for (const auto& [what, what_name] : kWhat) {
          RoutingConfig config;
          config.method = method;
          config.top_k = cell.top_k;
          config.num_groups = cell.groups;
          config.topk_groups = cell.kept;
          if (method == RoutingMethod::kDeepSeekV3) config.scale = 2.5f;
          const std::string name = std::string("Route/") + RoutingMethodName(method) + "/" +
                                   std::to_string(cell.experts) + "/" + std::to_string(cell.top_k) +
                                   "/" + std::to_string(cell.kept) + "of" +
                                   std::to_string(cell.groups) + "/" + std::to_string(rows) + "/" +
                                   what_name;
          benchmark::RegisterBenchmark(name.c_str(), Route, config, cell, rows, what)
              ->UseManualTime()
              ->Iterations(rows == 64 ? 400 : 15);
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace waymark::bench
