// Routing: from router logits to the experts of every token, recorded or replayed.
//
// One call selects top_k of E experts for each of N tokens, gives their weights, and, where asked,
// records the ids as int16 beside them; or takes recorded ids and only computes the weights. The
// engine uses the ids that come back, so what is recorded is what was used.
//
// Every implementation (host, portable or SIMD; CUDA, every variant) gives the same ids in the same
// order and the same weights, bit for bit: one definition of every function lies in routing_math.h,
// one order of every sum in routing_policy.h. docs/kernels.md has the formulas and their sources.
//
// Order and ties: by selection key, greatest first; of equal keys the lowest id, of equal groups
// the lowest group. NaN counts as -inf, -0 equals +0. A row in which fewer than top_k keys are
// finite still gives distinct ids in [0, E). Weights are never NaN.
#ifndef WAYMARK_KERNELS_ROUTING_H_
#define WAYMARK_KERNELS_ROUTING_H_

#include <cstdint>
#include <span>
#include <string>

#include "kernels/isa.h"
#include "kernels/tensor.h"

namespace waymark::kernels {

inline constexpr std::int32_t kMaxExperts = 1024;
inline constexpr std::int32_t kMaxTopK = 32;
inline constexpr std::int32_t kMaxGroups = 32;

// x: a token's logits, s = sigmoid(x), b: bias. Numbers are Waymark's own and do not change; other
// projects number their methods otherwise, and not always the same.
enum class RoutingMethod : std::uint8_t {
  kDefault = 0,           // select by x; weight: softmax over all experts
  kRenormalize = 1,       // select by x; weight: softmax over the selected
  kRenormalizeNaive = 2,  // the same: a softmax over all, divided by the sum of the selected
  kDeepSeekV3 = 3,        // select by s + b, in the best groups; weight: scale * s / sum of s
  kLlama4 = 4,            // top_k = 1, select by x; weight: s
  kTopK = 5,              // select by x; weight: x
  kSigmoidRenorm = 6,     // select by x; weight: s / sum of s (normalize) or s
  kMiniMax2 = 7,          // select by s + b; weight: scale * s / sum of s
  kSigmoid = 8,           // select by x; weight: s
  kTopKSigmoid = 9,       // the same
};
inline constexpr std::int32_t kNumRoutingMethods = 10;
// "Default", "Renormalize", ...
[[nodiscard]] const char* RoutingMethodName(RoutingMethod method);

// What does not change from call to call of one layer.
struct RoutingConfig {
  RoutingMethod method = RoutingMethod::kDefault;
  std::int32_t top_k = 0;  // K: 1 ... min(E, kMaxTopK)
  // DeepSeekV3 only: experts lie in num_groups groups of E / num_groups; the topk_groups groups
  // with the greatest sum of their two greatest keys are kept (of a group of one: its key).
  std::int32_t num_groups = 1;   // 1 ... kMaxGroups, divides E
  std::int32_t topk_groups = 1;  // 1 ... num_groups; topk_groups * E / num_groups >= K
  float scale = 1.0f;            // DeepSeekV3 and MiniMax2; finite
  bool normalize = true;         // SigmoidRenorm; false: the weights are not divided by their sum
};

// The tensors of one call. N is logits.shape[0], E is logits.shape[1]. All on one device. Rows may
// be strided, elements of a row are adjacent. Outputs may have more rows than N (a graph's buffers
// do); rows from N on are not touched. Outputs do not overlap anything. With N = 0 nothing is done,
// and data may be null.
struct RoutingTensors {
  Tensor logits;        // [N, E] float32, bfloat16 or float16
  Tensor bias;          // [E] float32, never rounded; DeepSeekV3 and MiniMax2, and may be left out
  Tensor topk_ids;      // out: [>= N, K] int32
  Tensor topk_weights;  // out: [>= N, K] float32 or bfloat16
  // out, may be left out: [>= N, K] int16, the ids again. Costs one store a row.
  Tensor replay_out;
  // May be left out: [>= N, K] int16. A row of K distinct ids in [0, E) is used as it is, in its
  // order; any other row is missing, and routed from its logits.
  Tensor replay_in;
  Tensor routed;  // out, with replay_in and only then: [>= N] uint8, 1 where the row was missing
};

// Which tensor or number an error is about.
enum class RoutingArgument : std::uint8_t {
  kNone = 0,
  kMethod,
  kTopK,
  kNumGroups,
  kTopKGroups,
  kScale,
  kNormalize,
  kLogits,
  kBias,
  kTopKIds,
  kTopKWeights,
  kReplayOut,
  kReplayIn,
  kRouted,
  kKeys,
  kStream,
};
// Which rule it breaks. `value` and `bound` of the code say by how much.
enum class RoutingRule : std::uint8_t {
  kNone = 0,
  kUnknown,         // value: no such method
  kMissing,         // the argument must be given
  kUnexpected,      // the argument means nothing here
  kNotOnDevice,     // value: CUDA's number of the device that the memory is on, -1: host memory;
                    // bound: the device of the call, -1: host
  kRank,            // value: rank; bound: the rank it must have
  kDType,           // value: the DType
  kRows,            // value: rows; bound: the least number of rows
  kColumns,         // value: columns; bound: the columns it must have (logits: the most)
  kNotContiguous,   // value: stride of adjacent elements of a row, not 1
  kRowStride,       // value: stride from row to row; bound: the least it must be
  kTooSmall,        // value: the number; bound: the least
  kTooLarge,        // value: the number; bound: the greatest
  kNotDivisor,      // value: num_groups; bound: E
  kTooFewInGroups,  // value: experts of the kept groups; bound: K
  kNotFinite,       // the number is NaN or infinite
  kCuda,            // value: cudaError_t of the launch
  kOtherShape,      // value: experts of the logits, or top_k; bound: those of the capture session
                    // that records (plugin/capture_session.h)
};

// The answer of every routing call. Plain data; not ok: nothing was launched, nothing was written
// (kCuda apart: the launch itself failed).
struct [[nodiscard]] RoutingCode {
  RoutingArgument argument = RoutingArgument::kNone;
  RoutingRule rule = RoutingRule::kNone;
  std::int64_t value = 0;
  std::int64_t bound = 0;

  [[nodiscard]] bool ok() const { return rule == RoutingRule::kNone; }
  // Names the argument, the rule and the value. Allocates.
  [[nodiscard]] std::string ToString() const;
};

// The one check, which every implementation makes before it does anything: `config` and `tensors`
// against the rules above. `device`: where all tensors must lie.
RoutingCode CheckRouting(const RoutingConfig& config, const RoutingTensors& tensors, Device device);
// The same for the keys alone (RoutingKeysOnHost below).
RoutingCode CheckRoutingKeys(const RoutingConfig& config, const RoutingTensors& tensors,
                             const Tensor& keys, Device device);

// On the host. Rows [0, N) in turn, on the calling thread; no allocation. `isa` is one of
// SupportedIsas() (isa.h); the second form takes the best.
RoutingCode RouteOnHost(const RoutingConfig& config, const RoutingTensors& tensors, Isa isa);
RoutingCode RouteOnHost(const RoutingConfig& config, const RoutingTensors& tensors);

// The selection keys that the methods compare, for tests and for looking into a near tie: keys,
// out:
// [>= N, E] float32 (NaN already -inf, -0 already +0; groups not masked). Looks at config.method,
// logits and bias only.
RoutingCode RoutingKeysOnHost(const RoutingConfig& config, const RoutingTensors& tensors,
                              const Tensor& keys);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_ROUTING_H_
