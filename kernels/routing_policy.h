// Routing methods as pairs of policies, and the table of them. Internal to kernels.
//
// A method is a score (the key that experts are selected by) and a weighting (what the selected are
// worth). Host and device code is written once over the two. The list Methods defines which
// method is which pair and which arguments it allows. A new method is a policy, if it needs a new
// one, and a row. docs/internals/kernels.md has the table; a test compares the two.
#ifndef WAYMARK_KERNELS_ROUTING_POLICY_H_
#define WAYMARK_KERNELS_ROUTING_POLICY_H_

#include <cstdint>

#include "kernels/routing.h"
#include "kernels/routing_math.h"

namespace waymark::kernels::routing {

// ---- scores

// Selects by the logit itself: softmax and sigmoid are monotone, so they would select the same,
// except in the near ties that rounding merges.
struct LogitScore {
  static constexpr bool kIsLogit = true;
  static constexpr const char* kFormula = "x";
  WAYMARK_HOST_DEVICE static float Key(float x, float /*bias*/) { return x; }
};
struct BiasedSigmoidScore {
  static constexpr bool kIsLogit = false;
  static constexpr const char* kFormula = "sigmoid(x) + b";
  WAYMARK_HOST_DEVICE static float Key(float x, float bias) { return Canonical(Sigmoid(x) + bias); }
};

// Of a group, as a key: the sum of its two greatest keys; of a group of one, for which the second
// is 0, its only key. Both and the result as KeyOf gives them.
WAYMARK_HOST_DEVICE std::uint32_t GroupScore(std::uint32_t first, std::uint32_t second) {
  return second == 0 ? first : KeyOf(Canonical(OfKey(first) + OfKey(second)));
}

// ---- weightings
//
// A term of each logit, their sum, and the weight from both. Sums are made in one order everywhere:
//   kSelected: of 32 terms, the k-th selected's at k and zeros behind; kSum below.
//   kAll: of all experts, in 128 columns (expert i in column i % 128, ascending); then columns
//         4l ... 4l + 3 as (a + b) + (c + d); then the 32 of them as above.
// The 32 are added pairwise, 16 apart, then 8, 4, 2 and 1: what a warp's butterfly does.

enum class Over : std::uint8_t { kNone, kSelected, kAll };

struct Scaling {
  float scale = 1.0f;
  bool normalize = true;
};

template <Over kOver>
struct SoftmaxWeight {
  static constexpr Over kSum = kOver;
  static constexpr bool kUsesMax = true;  // the greatest logit of those summed over
  static constexpr const char* kFormula =
      kOver == Over::kAll ? "exp(x) / sum over all of exp(x)" : "exp(x) / sum of exp(x)";
  WAYMARK_HOST_DEVICE static float Term(float x, float max) { return SoftmaxTerm(x, max); }
  WAYMARK_HOST_DEVICE static float Weight(float term, float sum, Scaling) { return term / sum; }
};
struct LogitWeight {
  static constexpr Over kSum = Over::kNone;
  static constexpr bool kUsesMax = false;
  static constexpr const char* kFormula = "x";
  WAYMARK_HOST_DEVICE static float Term(float x, float) { return x; }
  WAYMARK_HOST_DEVICE static float Weight(float term, float, Scaling) { return term; }
};
struct SigmoidWeight {
  static constexpr Over kSum = Over::kNone;
  static constexpr bool kUsesMax = false;
  static constexpr const char* kFormula = "sigmoid(x)";
  WAYMARK_HOST_DEVICE static float Term(float x, float) { return Sigmoid(x); }
  WAYMARK_HOST_DEVICE static float Weight(float term, float, Scaling) { return term; }
};
struct NormalizedSigmoidWeight {
  static constexpr Over kSum = Over::kSelected;
  static constexpr bool kUsesMax = false;
  static constexpr const char* kFormula = "sigmoid(x) / max(sum of sigmoid(x), 1e-20) if normalize";
  WAYMARK_HOST_DEVICE static float Term(float x, float) { return Sigmoid(x); }
  WAYMARK_HOST_DEVICE static float Weight(float term, float sum, Scaling scaling) {
    return scaling.normalize ? term / fmaxf(sum, 1e-20f) : term;
  }
};
struct ScaledSigmoidWeight {
  static constexpr Over kSum = Over::kSelected;
  static constexpr bool kUsesMax = false;
  static constexpr const char* kFormula = "scale * sigmoid(x) / (sum of sigmoid(x) + 1e-20)";
  WAYMARK_HOST_DEVICE static float Term(float x, float) { return Sigmoid(x); }
  WAYMARK_HOST_DEVICE static float Weight(float term, float sum, Scaling scaling) {
    return term * scaling.scale / (sum + 1e-20f);
  }
};

// ---- methods

// What a method allows beside logits.
enum Allows : unsigned { kNothing = 0, kBias = 1, kGroups = 2, kScale = 4 };

template <RoutingMethod kMethod, class ScorePolicy, class WeightPolicy, unsigned kAllows = kNothing,
          std::int32_t kMostTopK = kMaxTopK>
struct Method {
  static constexpr RoutingMethod kId = kMethod;
  using Score = ScorePolicy;
  using Weight = WeightPolicy;
  static constexpr bool kTakesBias = (kAllows & kBias) != 0;
  static constexpr bool kTakesGroups = (kAllows & kGroups) != 0;
  static constexpr bool kTakesScale = (kAllows & kScale) != 0;
  static constexpr std::int32_t kMaxK = kMostTopK;
};

template <class... M>
struct MethodList {
  // Calls visitor.operator()<M>() of the method with this id; false if there is none.
  template <class Visitor>
  static constexpr bool Visit(RoutingMethod id, Visitor&& visitor) {
    return ((M::kId == id && (visitor.template operator()<M>(), true)) || ...);
  }
  // Calls it for every method, in the order of the list.
  template <class Visitor>
  static constexpr void ForEach(Visitor&& visitor) {
    (visitor.template operator()<M>(), ...);
  }
};

// The table. In the order of RoutingMethod's numbers.
using Methods = MethodList<
    Method<RoutingMethod::kDefault, LogitScore, SoftmaxWeight<Over::kAll>>,
    Method<RoutingMethod::kRenormalize, LogitScore, SoftmaxWeight<Over::kSelected>>,
    Method<RoutingMethod::kRenormalizeNaive, LogitScore, SoftmaxWeight<Over::kSelected>>,
    Method<RoutingMethod::kDeepSeekV3, BiasedSigmoidScore, ScaledSigmoidWeight,
           kBias | kGroups | kScale>,
    Method<RoutingMethod::kLlama4, LogitScore, SigmoidWeight, kNothing, 1>,
    Method<RoutingMethod::kTopK, LogitScore, LogitWeight>,
    Method<RoutingMethod::kSigmoidRenorm, LogitScore, NormalizedSigmoidWeight>,
    Method<RoutingMethod::kMiniMax2, BiasedSigmoidScore, ScaledSigmoidWeight, kBias | kScale>,
    Method<RoutingMethod::kSigmoid, LogitScore, SigmoidWeight>,
    Method<RoutingMethod::kTopKSigmoid, LogitScore, SigmoidWeight>>;

// ---- tiers

// A warp holds a row of logits in registers, 4 adjacent ones per lane and quad: lane l of quad q
// has experts 128 q + 4 l ... + 3. Variants differ in the number of quads, and hold E <= 128 quads.
inline constexpr std::int32_t kQuadExperts = 128;
template <std::int32_t... kQuads>
struct TierList {
  static constexpr std::int32_t kAll[] = {kQuads...};
  // The tier of E experts: the smallest that holds them; 0 if none does.
  static constexpr std::int32_t Of(std::int32_t num_experts) {
    std::int32_t tier = 0;
    ((tier == 0 && num_experts <= kQuads* kQuadExperts ? tier = kQuads : 0), ...);
    return tier;
  }
  // Calls visitor.operator()<kQuads>() of the tier of E experts; false if there is none.
  template <class Visitor>
  static constexpr bool Visit(std::int32_t num_experts, Visitor&& visitor) {
    const std::int32_t tier = Of(num_experts);
    return ((kQuads == tier && (visitor.template operator()<kQuads>(), true)) || ...);
  }
};
using Tiers = TierList<1, 2, 3, 4, 6, 8>;
static_assert(Tiers::Of(kMaxExperts) * kQuadExperts == kMaxExperts);

}  // namespace waymark::kernels::routing

#endif  // WAYMARK_KERNELS_ROUTING_POLICY_H_
