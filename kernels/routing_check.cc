// The one check of routing arguments, and the words for what it finds.
#include <cmath>
#include <limits>
#include <string>

#include "kernels/routing.h"
#include "kernels/routing_policy.h"

namespace waymark::kernels {
namespace {

using routing::Methods;

constexpr const char* kArgumentNames[] = {
    "",          "method", "top_k", "num_groups", "topk_groups",  "scale",
    "normalize", "logits", "bias",  "topk_ids",   "topk_weights", "replay_out",
    "replay_in", "routed", "stream"};
static_assert(std::size(kArgumentNames) == static_cast<std::size_t>(RoutingArgument::kStream) + 1);

// In the order of RoutingRule. $v: the value, $b: the bound.
constexpr const char* kRuleTexts[] = {
    "",
    "must be in [0, $b], got $v",
    "must be given",
    "must not be given: it means nothing with this method and these arguments",
    "must be on $b, it is on $v",
    "must have rank $b, got $v",
    "has a type that it must not have: $v",
    "must have $b rows or more, got $v",
    "must have $b columns, got $v",
    "must have adjacent elements in a row, got stride $v",
    "must have a row stride of at least $b, got $v",
    "must be at least $b, got $v",
    "must be at most $b, got $v",
    "must divide the $b experts, got $v",
    "must keep groups of $b experts or more together, got $v",
    "must be finite",
    "gave CUDA error $v"};
static_assert(std::size(kRuleTexts) == static_cast<std::size_t>(RoutingRule::kCuda) + 1);

// 0 of a number that is no type.
constexpr unsigned Bit(DType type) {
  return type <= DType::kInt64 ? 1u << static_cast<unsigned>(type) : 0;
}

// What a tensor must be, beside given.
struct Wanted {
  RoutingArgument argument;
  std::int32_t rank;
  unsigned dtypes;            // one Bit() for each that will do
  std::int64_t rows;          // at least
  std::int64_t columns = -1;  // elements of the last axis, exactly; -1: any
};

RoutingCode CheckTensor(const Tensor& tensor, MemoryDevice device, const Wanted& wanted) {
  const auto broken = [&](RoutingRule rule, std::int64_t value, std::int64_t bound) {
    return RoutingCode{wanted.argument, rule, value, bound};
  };
  const auto ordinal = [](MemoryDevice d) {
    return d.kind == MemoryDevice::Kind::kCuda ? d.ordinal : -1;
  };
  if (!(tensor.device == device)) {
    return broken(RoutingRule::kNotOnDevice, ordinal(tensor.device), ordinal(device));
  }
  if (tensor.rank != wanted.rank) return broken(RoutingRule::kRank, tensor.rank, wanted.rank);
  if ((wanted.dtypes & Bit(tensor.dtype)) == 0) {
    return broken(RoutingRule::kDType, static_cast<std::int64_t>(tensor.dtype), 0);
  }
  if (tensor.shape[0] < wanted.rows) {
    return broken(RoutingRule::kRows, tensor.shape[0], wanted.rows);
  }
  const std::int64_t inner = tensor.rank - 1;
  if (wanted.columns >= 0 && tensor.shape[inner] != wanted.columns) {
    return broken(RoutingRule::kColumns, tensor.shape[inner], wanted.columns);
  }
  if (tensor.shape[inner] > 1 && tensor.stride[inner] != 1) {
    return broken(RoutingRule::kNotContiguous, tensor.stride[inner], 1);
  }
  if (tensor.rank == 2 && tensor.shape[0] > 1 && tensor.stride[0] < tensor.shape[1]) {
    return broken(RoutingRule::kRowStride, tensor.stride[0], tensor.shape[1]);
  }
  return {};
}

RoutingCode CheckRange(RoutingArgument argument, std::int64_t value, std::int64_t least,
                       std::int64_t greatest) {
  if (value < least) return {argument, RoutingRule::kTooSmall, value, least};
  if (value > greatest) return {argument, RoutingRule::kTooLarge, value, greatest};
  return {};
}

RoutingCode CheckConfig(const RoutingConfig& config, std::int64_t experts) {
  bool groups = false, scale = false;
  std::int32_t max_top_k = 0;
  if (!Methods::Visit(config.method, [&]<class M>() {
        groups = M::kTakesGroups;
        scale = M::kTakesScale;
        max_top_k = M::kMaxK;
      })) {
    return {RoutingArgument::kMethod, RoutingRule::kUnknown,
            static_cast<std::int64_t>(config.method), kNumRoutingMethods - 1};
  }
  RoutingCode code = CheckRange(RoutingArgument::kTopK, config.top_k, 1,
                                experts < max_top_k ? experts : max_top_k);
  if (code.ok()) {
    code = CheckRange(RoutingArgument::kNumGroups, config.num_groups, 1, groups ? kMaxGroups : 1);
  }
  if (code.ok()) {
    code = CheckRange(RoutingArgument::kTopKGroups, config.topk_groups, 1, config.num_groups);
  }
  if (!code.ok()) return code;
  if (experts % config.num_groups != 0) {
    return {RoutingArgument::kNumGroups, RoutingRule::kNotDivisor, config.num_groups, experts};
  }
  const std::int64_t kept = config.topk_groups * (experts / config.num_groups);
  if (kept < config.top_k) {
    return {RoutingArgument::kTopKGroups, RoutingRule::kTooFewInGroups, kept, config.top_k};
  }
  if (!std::isfinite(config.scale)) return {RoutingArgument::kScale, RoutingRule::kNotFinite};
  if (!scale && config.scale != 1.0f) return {RoutingArgument::kScale, RoutingRule::kUnexpected};
  if (!config.normalize && config.method != RoutingMethod::kSigmoidRenorm) {
    return {RoutingArgument::kNormalize, RoutingRule::kUnexpected};
  }
  return {};
}

constexpr unsigned kFloat32 = Bit(DType::kFloat32);
constexpr unsigned kInt16 = Bit(DType::kInt16);
constexpr unsigned kWeightTypes = kFloat32 | Bit(DType::kBfloat16);
constexpr unsigned kLogitTypes = kWeightTypes | Bit(DType::kFloat16);

RoutingCode CheckLogits(const Tensor& logits, MemoryDevice device) {
  if (RoutingCode code = CheckTensor(logits, device, {RoutingArgument::kLogits, 2, kLogitTypes, 0});
      !code.ok()) {
    return code;
  }
  const std::int64_t experts = logits.shape[1];
  if (experts < 1 || experts > kMaxExperts) {
    return {RoutingArgument::kLogits, RoutingRule::kColumns, experts, kMaxExperts};
  }
  if (logits.shape[0] > 0 && !logits.given()) {
    return {RoutingArgument::kLogits, RoutingRule::kMissing};
  }
  return CheckRange(RoutingArgument::kLogits, logits.shape[0], 0,
                    std::numeric_limits<std::int32_t>::max());
}

}  // namespace

const char* DTypeName(DType type) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "uint8",
                                    "int16",   "int32",    "int64"};
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown type";
}

RoutingCode CheckRouting(const RoutingConfig& config, const RoutingTensors& tensors,
                         MemoryDevice device) {
  RoutingCode code = CheckLogits(tensors.logits, device);
  if (!code.ok()) return code;
  const Tensor& logits = tensors.logits;
  const std::int64_t rows = logits.shape[0];
  const std::int64_t experts = logits.shape[1];
  if (code = CheckConfig(config, experts); !code.ok()) return code;
  bool takes_bias = false;
  Methods::Visit(config.method, [&]<class M>() { takes_bias = M::kTakesBias; });
  const bool replays = tensors.replay_in.given();
  const std::int64_t k = config.top_k;
  const struct {
    const Tensor& tensor;
    Wanted wanted;
    bool required;
    bool allowed;
  } all[] = {
      {tensors.bias, {RoutingArgument::kBias, 1, kFloat32, 0, experts}, false, takes_bias},
      {tensors.topk_ids, {RoutingArgument::kTopKIds, 2, Bit(DType::kInt32), rows, k}, true, true},
      {tensors.topk_weights, {RoutingArgument::kTopKWeights, 2, kWeightTypes, rows, k}, true, true},
      {tensors.replay_out, {RoutingArgument::kReplayOut, 2, kInt16, rows, k}, false, true},
      {tensors.replay_in, {RoutingArgument::kReplayIn, 2, kInt16, rows, k}, false, true},
      {tensors.routed, {RoutingArgument::kRouted, 1, Bit(DType::kUint8), rows}, replays, replays},
  };
  for (const auto& each : all) {
    if (!each.tensor.given()) {
      if (each.required && rows > 0) return {each.wanted.argument, RoutingRule::kMissing};
      continue;
    }
    if (!each.allowed) return {each.wanted.argument, RoutingRule::kUnexpected};
    if (code = CheckTensor(each.tensor, device, each.wanted); !code.ok()) return code;
  }
  return {};
}

std::string RoutingCode::ToString() const {
  if (ok()) return "ok";
  const char* text = kRuleTexts[static_cast<std::size_t>(rule)];
  if (argument == RoutingArgument::kLogits && rule == RoutingRule::kColumns) {
    text = "must have 1 to $b columns, got $v";
  } else if (argument == RoutingArgument::kLogits && rule == RoutingRule::kTooLarge) {
    text = "must have at most $b rows, got $v";
  } else if (argument == RoutingArgument::kBias && rule == RoutingRule::kColumns) {
    text = "must have $b elements, got $v";
  }
  std::string all = std::string(kArgumentNames[static_cast<std::size_t>(argument)]) + " ";
  for (; *text != 0; ++text) {
    if (*text != '$') {
      all += *text;
      continue;
    }
    const std::int64_t number = *++text == 'v' ? value : bound;
    if (rule == RoutingRule::kDType) {
      all += DTypeName(static_cast<DType>(number));
    } else if (rule == RoutingRule::kNotOnDevice) {
      all += number < 0 ? "the host" : "CUDA device " + std::to_string(number);
    } else {
      all += std::to_string(number);
    }
  }
  return all;
}

}  // namespace waymark::kernels
