// Routing: from router logits to the experts of every token, recorded or replayed.
//
// One call selects top_k of E experts for each of N tokens, computes their weights, and can record
// the ids as int16; or it takes recorded ids and computes only the weights. The engine uses the ids
// that it gets, so what is recorded is what was used.
//
// Every implementation (host; CUDA, every variant) returns the same ids in the same order and the
// same weights, bit for bit: routing_math.h has the one definition of every function,
// routing_policy.h the one order of every sum. docs/internals/kernels.md: formulas, references.
//
// Order and ties: by selection key, greatest first; of equal keys the lowest id first, of equal
// groups the lowest group. NaN counts as -inf, -0 equals +0. A row in which fewer than top_k keys
// are finite still has distinct ids in [0, E). Weights are never NaN.
#ifndef WAYMARK_KERNELS_ROUTING_H_
#define WAYMARK_KERNELS_ROUTING_H_

#include <cstdint>
#include <string>

#include "kernels/tensor.h"

namespace waymark::kernels {

inline constexpr std::int32_t kMaxExperts = 1024;  // E, at most
inline constexpr std::int32_t kMaxTopK = 32;       // K, at most
inline constexpr std::int32_t kMaxGroups = 32;     // groups of experts, at most

// How a router selects experts and weights them. x: a logit, s = sigmoid(x), b: the expert's bias.
// The numbers are Waymark's own and do not change; other projects use other numbers for these
// methods.
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

// The parameters of a router: the same for every call of one layer.
struct RoutingConfig {
  RoutingMethod method = RoutingMethod::kDefault;
  std::int32_t top_k = 0;  // K: 1 ... min(E, kMaxTopK)
  // DeepSeekV3 only: the E experts form num_groups groups of E / num_groups neighbours. Experts are
  // selected from the topk_groups groups with the greatest sum of their two greatest keys (in
  // groups of one expert: with the greatest key).
  std::int32_t num_groups = 1;   // 1 ... kMaxGroups, divides E
  std::int32_t topk_groups = 1;  // 1 ... num_groups; topk_groups * E / num_groups >= K
  float scale = 1.0f;            // DeepSeekV3 and MiniMax2; finite
  bool normalize = true;         // SigmoidRenorm; false: the weights are not divided by their sum
};

// The tensors of one call; memory of the caller, all of it on one device. N is logits.shape[0], E
// is logits.shape[1]. Rows may be strided; the elements of a row are adjacent. Outputs may have
// more than N rows, as the buffers of a CUDA graph have; rows from N on are not written. Outputs
// overlap neither each other nor an input. With N = 0 nothing is done, and data may be null.
struct RoutingTensors {
  Tensor logits;        // [N, E] float32, bfloat16 or float16
  Tensor bias;          // optional, of DeepSeekV3 and MiniMax2: [E] float32, never rounded
  Tensor topk_ids;      // out: [>= N, K] int32
  Tensor topk_weights;  // out: [>= N, K] float32 or bfloat16
  // out, optional: [>= N, K] int16, the ids again. Takes one write to memory per row.
  Tensor replay_out;
  // Optional: [>= N, K] int16, recorded ids. A row of K distinct ids in [0, E) is used as it is, in
  // its order; any other row is missing, and is routed from its logits.
  Tensor replay_in;
  Tensor routed;  // out, with replay_in and only then: [>= N] uint8, 1 where the row was missing
};

// The tensor or number that an error is about; named as in RoutingConfig and RoutingTensors.
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
  kStream,
};
// The rule that it breaks. Each comment gives the meaning of RoutingCode::value and bound.
enum class RoutingRule : std::uint8_t {
  kNone = 0,
  kUnknown,         // value: no such method
  kMissing,         // the argument must be given
  kUnexpected,      // the argument has no meaning with this method and these arguments
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
};

// The result of every routing call. Plain data. If it is not ok, nothing was launched and nothing
// was written; with kCuda the launch itself failed.
struct [[nodiscard]] RoutingCode {
  RoutingArgument argument = RoutingArgument::kNone;
  RoutingRule rule = RoutingRule::kNone;
  std::int64_t value = 0;
  std::int64_t bound = 0;

  [[nodiscard]] bool ok() const { return rule == RoutingRule::kNone; }
  // A sentence with the argument, the rule and the value: "top_k must be at most 16, got 17".
  // Allocates.
  [[nodiscard]] std::string ToString() const;
};

// Checks `config` and `tensors` against the rules above; every implementation calls this before it
// does anything. `device`: where all tensors must lie.
RoutingCode CheckRouting(const RoutingConfig& config, const RoutingTensors& tensors,
                         MemoryDevice device);
// Routes rows [0, N) on the host, one after the other on the calling thread, without allocation.
// Any thread.
RoutingCode RouteOnHost(const RoutingConfig& config, const RoutingTensors& tensors);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_ROUTING_H_
