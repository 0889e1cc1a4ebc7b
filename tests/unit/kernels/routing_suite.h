// What the tests of routing share: a problem as plain numbers, a run of it through a backend in
// guarded memory, and what came back.
//
// A test program is the sources routing_suite*.cc and a definition of RoutingBackends()
// (routing_backend.h). What must come back: routing_oracle.h. Rows to try: routing_inputs.h.
#ifndef WAYMARK_TESTS_UNIT_KERNELS_ROUTING_SUITE_H_
#define WAYMARK_TESTS_UNIT_KERNELS_ROUTING_SUITE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/routing.h"
#include "tests/support/routing_method_name.h"
#include "tests/unit/kernels/routing_backend.h"

namespace waymark::kernels {

// Skips where no backend can run.
class RoutingSuite : public testing::Test {
 protected:
  void SetUp() override {
    if (RoutingBackends().empty()) GTEST_SKIP() << "no backend can run here";
  }
};

// WAYMARK_SEED, or a new one; printed once.
std::uint64_t RoutingSeed();
// A generator that depends on the seed and on `salt`, so that tests do not depend on their order.
std::mt19937_64 RoutingRandom(std::uint64_t salt);

// A row of the methods' table (kernels/routing_policy.h), as data.
struct MethodInfo {
  RoutingMethod id;
  std::string name;
  bool takes_bias;
  bool takes_groups;
  bool takes_scale;
  std::int32_t max_k;
};
const std::vector<MethodInfo>& AllMethods();

// E and K that the grids go through.
inline constexpr std::int32_t kExpertCounts[] = {1,   2,   5,   31,  32,   33,   63,  96,  100,
                                                 127, 128, 129, 160, 255,  256,  257, 300, 384,
                                                 512, 576, 768, 896, 1000, 1023, 1024};
std::vector<std::int32_t> TopKs(const MethodInfo& method, std::int32_t experts);
// The divisors of E that can be a number of groups.
std::vector<std::int32_t> GroupCounts(std::int32_t experts);
// The least topk_groups that leaves K experts.
std::int32_t LeastTopKGroups(std::int32_t experts, std::int32_t num_groups, std::int32_t top_k);

inline constexpr DType kLogitTypes[] = {DType::kFloat32, DType::kBfloat16, DType::kFloat16};
inline constexpr DType kWeightTypes[] = {DType::kFloat32, DType::kBfloat16};

// Storage of a number in a type of logits or weights, and back. To nearest, ties to even; a NaN
// stays one, with its sign.
std::uint32_t Encode(DType type, float value);
float Decode(DType type, std::uint32_t bits);
// What is left of a number that was stored.
inline float Rounded(DType type, float value) {
  return Decode(type, Encode(type, value));
}

struct Problem {
  RoutingConfig config;
  std::int64_t rows = 0;
  std::int32_t experts = 0;
  DType logit_type = DType::kFloat32;
  DType weight_type = DType::kFloat32;
  bool record = true;
  std::vector<float> logits;         // [rows, experts]; rounded to logit_type when they are stored
  std::vector<float> bias;           // [experts]; empty: none
  std::vector<std::int16_t> replay;  // [rows, top_k]; empty: none

  // A logit as the implementation sees it.
  [[nodiscard]] float Logit(std::int64_t row, std::int32_t expert) const {
    return Rounded(logit_type, logits[static_cast<std::size_t>(row * experts + expert)]);
  }
  // Only these rows, in this order.
  [[nodiscard]] Problem Rows(const std::vector<std::int64_t>& which) const;
  [[nodiscard]] std::string ToString() const;
};

// How the tensors lie. What a call gives does not depend on it.
struct Layout {
  std::int64_t gap = 0;         // elements, or more, between the rows of every matrix
  std::int64_t spare_rows = 0;  // rows of the outputs and of replay_in beyond N
  bool at_start = false;        // at the start of a page; else each tensor ends where memory ends
  std::int64_t behind = 0;      // or so many elements before: at other addresses
};

struct RouteResult {
  RoutingCode code;
  DType weight_type = DType::kFloat32;
  std::vector<std::int32_t> ids;       // [rows, top_k]
  std::vector<std::uint32_t> weights;  // [rows, top_k], bits
  std::vector<std::int16_t> recorded;  // [rows, top_k]; empty if nothing was to be recorded
  std::vector<std::uint8_t> routed;    // [rows]; empty without replay

  [[nodiscard]] float Weight(std::size_t i) const { return Decode(weight_type, weights[i]); }
};

// Runs it. Fails the test if an input was changed, or anything but the outputs' N rows of K; a
// crash if anything outside the tensors was touched.
RouteResult RunOn(RoutingBackend& backend, const Problem& problem, const Layout& layout = {});
// The host form, with which the others are compared.
RoutingBackend& ReferenceBackend();
inline RouteResult RunReference(const Problem& problem) {
  return RunOn(ReferenceBackend(), problem);
}
// The keys that its method compares, of all rows: [rows, experts].
std::vector<float> KeysOf(const Problem& problem);

// Bit for bit: ids, order, weights, what was recorded, which rows were routed.
void ExpectSame(const RouteResult& wanted, const RouteResult& got, const Problem& problem);
// Every backend gives `wanted`; slow ones only where they are asked to.
enum class Slow : bool { kSpared, kToo };
void ExpectEverywhere(const RouteResult& wanted, const Problem& problem, const Layout& layout = {},
                      Slow slow = Slow::kToo);
// The whole of it: runs the reference, holds it against the oracle (routing_oracle.h), and every
// backend against the reference. Returns the answer.
RouteResult ExpectRight(const Problem& problem, Slow slow = Slow::kToo);

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_UNIT_KERNELS_ROUTING_SUITE_H_
