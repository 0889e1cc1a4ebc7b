// What routing must give, written down a second time: keys and weights in float64, selection by a
// stable sort. Knows nothing of kernels/routing_policy.h.
//
// In two stages, so that the ulps of an exponential never blur a selection: keys are compared with
// float64 within a bound; the selection is compared, exactly and in order, with the sorted keys
// that the implementation itself gives; weights are compared with float64 within a bound.
#ifndef WAYMARK_TESTS_UNIT_KERNELS_ROUTING_ORACLE_H_
#define WAYMARK_TESTS_UNIT_KERNELS_ROUTING_ORACLE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {

// Bounds, in units in the last place (of float32) of the exact result. Measured (see
// RoutingNumerics), with little to spare.
struct UlpBounds {
  double sigmoid;           // sigmoid(x), and keys: this of the sigmoid, and half of the sum
  double softmax_all;       // plus the rounding of x - max: |x - max|, and its mean over the sum
  double softmax_selected;  // likewise
  double sigmoid_renorm;
  double scaled_sigmoid;
  double softmax_replayed;  // as softmax_selected, of recorded ids: by analysis, not measured
};
extern const UlpBounds kUlpBounds;

// The distance of float32 numbers around `value`.
double Ulp(double value);

// A number with the error that it may have.
struct Bounded {
  double value = 0;
  double tolerance = 0;  // beyond it: wrong
  // Of it, what is not the bound of kUlpBounds: rounding of an argument, what is flushed to zero.
  // NaN never is a right answer; an infinite value must be met exactly.
  double slack = 0;
};

// The selection key of one expert.
Bounded OracleKey(RoutingMethod method, float logit, float bias);
bool KeyIsLogit(RoutingMethod method);

// The ids that a row of keys selects.
std::vector<std::int32_t> OracleSelection(const RoutingConfig& config, std::span<const float> keys);

// The weights of `ids`, in their order, for one row of logits.
std::vector<Bounded> OracleWeights(const RoutingConfig& config, std::span<const float> logits,
                                   std::span<const std::int32_t> ids, bool replayed = false);

// Whether a row of replay_in is to be used as it is.
bool OracleReplayable(std::span<const std::int16_t> ids, std::int32_t experts);

// Of a measured value: (|measured - value| - slack) in ulps, to compare with kUlpBounds.
double UlpsOff(const Bounded& exact, float measured);

// "" or what is wrong with it.
std::string Judge(const Problem& problem, std::span<const float> keys, const RouteResult& result);

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_UNIT_KERNELS_ROUTING_ORACLE_H_
