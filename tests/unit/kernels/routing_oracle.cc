#include "tests/unit/kernels/routing_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>

namespace waymark::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFlushed = 1.65e-38;  // e^-87: smaller exponentials are zero

enum class Weighting { kSoftmaxAll, kSoftmaxSelected, kLogit, kSigmoid, kSigmoidRenorm, kScaled };

Weighting WeightingOf(RoutingMethod method) {
  switch (method) {
    case RoutingMethod::kDefault:
      return Weighting::kSoftmaxAll;
    case RoutingMethod::kRenormalize:
    case RoutingMethod::kRenormalizeNaive:
      return Weighting::kSoftmaxSelected;
    case RoutingMethod::kDeepSeekV3:
    case RoutingMethod::kMiniMax2:
      return Weighting::kScaled;
    case RoutingMethod::kSigmoidRenorm:
      return Weighting::kSigmoidRenorm;
    case RoutingMethod::kTopK:
      return Weighting::kLogit;
    case RoutingMethod::kLlama4:
    case RoutingMethod::kSigmoid:
    case RoutingMethod::kTopKSigmoid:
      return Weighting::kSigmoid;
  }
  std::abort();  // a method without a definition here
}

double Counted(float number) {
  return std::isnan(number) ? -kInfinity : static_cast<double>(number);
}

Bounded ExactSigmoid(double x) {
  Bounded s;
  const double e = std::exp(-std::fabs(x));
  s.value = x < 0 ? e / (1 + e) : 1 / (1 + e);
  if (x < -86.9) s.slack = kFlushed;
  s.tolerance = kUlpBounds.sigmoid * Ulp(s.value) + s.slack;
  return s;
}

// `over`: the logits of the sum.
std::vector<Bounded> Softmax(const std::vector<double>& over, const std::vector<double>& selected,
                             double ulps) {
  const double max = *std::max_element(over.begin(), over.end());
  // x - max is rounded to float32 once; d is what it should be, `off` how far it is from that.
  struct Term {
    double value, off;
  };
  const auto term = [max](double x) -> Term {
    if (x == max) return {1, 0};
    const double d = x - max;
    if (std::isinf(d)) return {0, 0};
    return {std::exp(d), std::fabs(static_cast<double>(static_cast<float>(d)) - d)};
  };
  double sum = 0, sum_off = 0;
  for (const double x : over) {
    const Term t = term(x);
    sum += t.value;
    sum_off += t.value * t.off;
  }
  std::vector<Bounded> weights;
  for (const double x : selected) {
    const Term t = term(x);
    Bounded w;
    w.value = t.value / sum;
    w.slack = w.value * (t.off + sum_off / sum);
    if (t.value < 1.02 * kFlushed && t.value != 0) w.slack += kFlushed / sum;
    w.tolerance = ulps * Ulp(w.value) + w.slack;
    weights.push_back(w);
  }
  return weights;
}

}  // namespace

// Of the sigmoid: 2.781 over every float32. Of the others: 4.28, 3.53, 4.24 and 4.96 over 40 seeds.
// Replayed ids need not be the greatest, so their weights may be small beside the sum (4.76 ulp
// with WAYMARK_SEED=2020532813). Their bound is the worst case: twice the 1 ulp of the exponential,
// five roundings of a sum of 32 and one of the quotient, where an ulp may be 2^-24 of the weight.
const UlpBounds kUlpBounds = {2.8, 5.5, 4.5, 5.5, 6.0, 10.0};

double Ulp(double value) {
  if (std::isinf(value) || value == 0) return 0x1p-149;
  return std::ldexp(1.0, std::max(std::ilogb(value), -126) - 23);
}

bool KeyIsLogit(RoutingMethod method) {
  return method != RoutingMethod::kDeepSeekV3 && method != RoutingMethod::kMiniMax2;
}

Bounded OracleKey(RoutingMethod method, float logit, float bias) {
  Bounded key;
  key.value = Counted(logit);
  if (KeyIsLogit(method)) return key;
  const Bounded s = ExactSigmoid(key.value);
  key.value = std::isnan(bias) ? -kInfinity : s.value + static_cast<double>(bias);
  if (std::isinf(key.value)) return key;
  key.slack = s.tolerance;
  key.tolerance = s.tolerance + 0.5 * Ulp(std::fabs(key.value) + s.tolerance);
  return key;
}

std::vector<std::int32_t> OracleSelection(const RoutingConfig& config,
                                          std::span<const float> keys) {
  const auto best_first = [](const std::vector<float>& of) {
    std::vector<std::int32_t> order(of.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return of[static_cast<std::size_t>(a)] > of[static_cast<std::size_t>(b)];
    });
    return order;
  };
  const std::size_t size = keys.size() / static_cast<std::size_t>(config.num_groups);
  std::vector<float> scores;
  for (std::size_t begin = 0; begin < keys.size(); begin += size) {
    std::vector<float> group(keys.begin() + static_cast<std::ptrdiff_t>(begin),
                             keys.begin() + static_cast<std::ptrdiff_t>(begin + size));
    std::sort(group.begin(), group.end(), std::greater<>());
    const float score = size == 1 ? group[0] : group[0] + group[1];
    scores.push_back(std::isnan(score) ? -INFINITY : score);
  }
  const std::vector<std::int32_t> groups = best_first(scores);
  const std::set<std::int32_t> kept(groups.begin(), groups.begin() + config.topk_groups);
  std::vector<std::int32_t> ids;
  for (const std::int32_t id : best_first({keys.begin(), keys.end()})) {
    const bool wanted = kept.count(id / static_cast<std::int32_t>(size)) != 0;
    if (wanted && ids.size() < static_cast<std::size_t>(config.top_k)) ids.push_back(id);
  }
  return ids;
}

std::vector<Bounded> OracleWeights(const RoutingConfig& config, std::span<const float> logits,
                                   std::span<const std::int32_t> ids, bool replayed) {
  std::vector<double> selected;
  selected.reserve(ids.size());
  for (const std::int32_t id : ids)
    selected.push_back(Counted(logits[static_cast<std::size_t>(id)]));
  std::vector<Bounded> weights;
  switch (const Weighting weighting = WeightingOf(config.method)) {
    case Weighting::kSoftmaxAll: {
      std::vector<double> all;
      all.reserve(logits.size());
      for (const float x : logits)
        all.push_back(Counted(x));
      return Softmax(all, selected, kUlpBounds.softmax_all);
    }
    case Weighting::kSoftmaxSelected:
      return Softmax(selected, selected,
                     replayed ? kUlpBounds.softmax_replayed : kUlpBounds.softmax_selected);
    case Weighting::kLogit:
      for (const double x : selected)
        weights.push_back({x, 0, 0});
      return weights;
    case Weighting::kSigmoid:
    case Weighting::kSigmoidRenorm:
    case Weighting::kScaled: {
      double sum = 0;
      for (const double x : selected) {
        weights.push_back(ExactSigmoid(x));
        sum += weights.back().value;
      }
      const bool renorm = weighting == Weighting::kSigmoidRenorm;
      if (weighting == Weighting::kSigmoid || (renorm && !config.normalize)) return weights;
      const double floor = static_cast<double>(1e-20f);
      const double divisor = renorm ? std::max(sum, floor) : sum + floor;
      const double scale = renorm ? 1.0 : static_cast<double>(config.scale);
      const double ulps = renorm ? kUlpBounds.sigmoid_renorm : kUlpBounds.scaled_sigmoid;
      for (Bounded& w : weights) {
        const double scaled = w.value * scale;
        w.slack = w.slack * std::fabs(scale) / divisor;
        // A product below float32's normal numbers loses digits before it is divided.
        if (std::fabs(scaled) < 0x1p-125) w.slack += 0x1p-150 / divisor;
        w.value = scaled / divisor;
        w.slack += std::fabs(w.value) * static_cast<double>(ids.size()) * kFlushed / divisor;
        w.tolerance = ulps * Ulp(w.value) + w.slack;
      }
      return weights;
    }
  }
  std::abort();
}

bool OracleReplayable(std::span<const std::int16_t> ids, std::int32_t experts) {
  const std::set<std::int16_t> distinct(ids.begin(), ids.end());
  return distinct.size() == ids.size() && *distinct.begin() >= 0 && *distinct.rbegin() < experts;
}

double UlpsOff(const Bounded& exact, float measured) {
  const double value = static_cast<double>(measured);
  if (value == exact.value) return 0;
  if (!std::isfinite(value) || !std::isfinite(exact.value)) return kInfinity;
  return std::max(0.0, std::fabs(value - exact.value) - exact.slack) / Ulp(exact.value);
}

std::string Judge(const Problem& problem, std::span<const float> keys, const RouteResult& result) {
  if (!result.code.ok()) return result.code.ToString();
  const auto k = static_cast<std::size_t>(problem.config.top_k);
  const auto experts = static_cast<std::size_t>(problem.experts);
  const auto rows = static_cast<std::size_t>(problem.rows);
  if (result.ids.size() != rows * k || result.weights.size() != rows * k) return "sizes differ";
  if (result.recorded.size() != (problem.record ? rows * k : 0)) return "sizes differ";
  if (result.routed.size() != (problem.replay.empty() ? 0 : rows)) return "sizes differ";
  std::ostringstream wrong;
  std::vector<float> logits(experts);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t e = 0; e < experts; ++e) {
      logits[e] = problem.Logit(static_cast<std::int64_t>(row), static_cast<std::int32_t>(e));
      const float bias = problem.bias.empty() ? 0.0f : problem.bias[e];
      const Bounded exact = OracleKey(problem.config.method, logits[e], bias);
      const auto key = static_cast<double>(keys[row * experts + e]);
      if (key == exact.value || std::fabs(key - exact.value) <= exact.tolerance) continue;
      wrong << "row " << row << ": key of expert " << e << " is " << key << " for " << exact.value;
      return wrong.str();
    }
    std::vector<std::int32_t> ids =
        OracleSelection(problem.config, keys.subspan(row * experts, experts));
    bool replayed = false;
    if (!problem.replay.empty()) {
      const std::span<const std::int16_t> given =
          std::span<const std::int16_t>(problem.replay).subspan(row * k, k);
      replayed = OracleReplayable(given, problem.experts);
      if (replayed) ids.assign(given.begin(), given.end());
      if (result.routed[row] != (replayed ? 0 : 1)) {
        wrong << "row " << row << ": routed is " << int{result.routed[row]};
        return wrong.str();
      }
    }
    const std::vector<Bounded> weights = OracleWeights(problem.config, logits, ids, replayed);
    for (std::size_t i = 0; i < k; ++i) {
      const std::size_t at = row * k + i;
      wrong << "row " << row << ", column " << i << ": ";
      if (result.ids[at] != ids[i]) {
        wrong << "id " << result.ids[at] << " for " << ids[i];
        return wrong.str();
      }
      if (problem.record && result.recorded[at] != ids[i]) {
        wrong << "recorded " << result.recorded[at] << " for " << ids[i];
        return wrong.str();
      }
      const auto weight = static_cast<double>(result.Weight(at));
      double tolerance = weights[i].tolerance;
      double value = weights[i].value;
      if (problem.weight_type == DType::kBfloat16) {
        tolerance += 0x1p15 * Ulp(std::fabs(value) + tolerance);
        // What lies beyond the greatest one by half an ulp or more is infinite.
        const bool beyond = std::fabs(value) + weights[i].tolerance >= 0x1.ffp127;
        if (beyond && std::isinf(weight)) value = std::copysign(kInfinity, value);
      }
      if (weight != value && !(std::fabs(weight - value) <= tolerance)) {
        wrong << "weight " << weight << " for " << value << " +- " << tolerance << ", "
              << std::fabs(weight - value) / Ulp(value) << " ulp off";
        return wrong.str();
      }
      wrong.str("");
    }
  }
  return "";
}

}  // namespace waymark::kernels
