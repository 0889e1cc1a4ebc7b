// Rows of logits and biases to try: one family for each thing that goes wrong.
#ifndef WAYMARK_TESTS_UNIT_KERNELS_ROUTING_INPUTS_H_
#define WAYMARK_TESTS_UNIT_KERNELS_ROUTING_INPUTS_H_

#include <cstdint>
#include <random>
#include <vector>

#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {

// Of one row. Every number is exact in all three types of logits, but for kNormal and kWide.
enum class Family : std::uint8_t {
  kTieFree,      // a permutation of distinct numbers of both signs
  kQuantised,    // five values: many exact ties
  kEqual,        // one value
  kNegative,     // distinct and below zero
  kInfinities,   // a third of them +inf, a third -inf
  kAllPlus,      // +inf throughout
  kAllMinus,     // -inf throughout
  kSomeNaN,      // half of them NaN, of both signs
  kAllNaN,       // NaN throughout, of both signs
  kSubnormal,    // float16's and float32's subnormal numbers, of both signs
  kSignedZeros,  // -0 and +0, and a few others
  kFewFinite,    // one to seven are finite; the others -inf or NaN
  kNormal,       // normally distributed
  kWide,         // from -200 to 200: exponentials that vanish
  kHighBest,     // the greatest have the highest ids
};
inline constexpr Family kFamilies[] = {Family::kTieFree,   Family::kQuantised,   Family::kEqual,
                                       Family::kNegative,  Family::kInfinities,  Family::kAllPlus,
                                       Family::kAllMinus,  Family::kSomeNaN,     Family::kAllNaN,
                                       Family::kSubnormal, Family::kSignedZeros, Family::kFewFinite,
                                       Family::kNormal,    Family::kWide,        Family::kHighBest};
const char* FamilyName(Family family);

void AppendRow(Family family, std::int32_t experts, std::mt19937_64& random,
               std::vector<float>& logits);

enum class BiasFamily : std::uint8_t {
  kNone,
  kSmall,      // +-0.1
  kOffset,     // a common offset of 7 to 12, and steps far below a bfloat16's ulp there
  kQuantised,  // three values: ties
  kBroken,     // NaN, -inf and +inf among them
};
inline constexpr BiasFamily kBiasFamilies[] = {BiasFamily::kNone, BiasFamily::kSmall,
                                               BiasFamily::kOffset, BiasFamily::kQuantised,
                                               BiasFamily::kBroken};
std::vector<float> MakeBias(BiasFamily family, std::int32_t experts, std::mt19937_64& random);

// A row of `top_k` distinct ids; or one that is missing: it has a -1, an id of E or more, an id
// below -1, or one id twice.
void AppendReplayRow(bool missing, std::int32_t experts, std::int32_t top_k,
                     std::mt19937_64& random, std::vector<std::int16_t>& replay);

// A problem of one method with the rows of these families, no bias, no replay.
Problem MakeProblem(RoutingMethod method, std::int32_t experts, std::int32_t top_k,
                    const std::vector<Family>& families, std::mt19937_64& random);

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_UNIT_KERNELS_ROUTING_INPUTS_H_
