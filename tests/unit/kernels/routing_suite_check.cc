// The one check: what is refused, by which name, with which value, and that nothing is written
// then. Through every backend, so that none forgets to ask it.
#include <gmock/gmock.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

using testing::HasSubstr;

class RoutingCheck : public RoutingSuite {};

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kExperts = 64;
constexpr std::int64_t kTopK = 8;

using Member = Tensor RoutingTensors::*;

// A call in which everything is right, and all tensors given; memory enough for whatever a test
// says that the tensors are.
class Call {
 public:
  explicit Call(MemoryDevice device = MemoryDevice::Host()) {
    config.method = RoutingMethod::kDeepSeekV3;
    config.top_k = kTopK;
    tensors.logits = Tensor::Matrix(Memory(), DType::kFloat32, kRows, kExperts, device);
    tensors.bias = Tensor::Vector(Memory(), DType::kFloat32, kExperts, device);
    tensors.topk_ids = Tensor::Matrix(Memory(), DType::kInt32, kRows, kTopK, device);
    tensors.topk_weights = Tensor::Matrix(Memory(), DType::kFloat32, kRows, kTopK, device);
    tensors.replay_out = Tensor::Matrix(Memory(), DType::kInt16, kRows, kTopK, device);
    tensors.replay_in = Tensor::Matrix(Memory(), DType::kInt16, kRows, kTopK, device);
    tensors.routed = Tensor::Vector(Memory(), DType::kUint8, kRows, device);
  }

  // The same on every backend; then as the message says. Nothing may be written.
  void ExpectRefused(RoutingArgument argument, RoutingRule rule, std::int64_t value,
                     std::int64_t bound, const std::string& says) {
    const auto before = *memory_;
    for (const auto& backend : RoutingBackends()) {
      SCOPED_TRACE(backend->name());
      const RoutingCode code = backend->Route(config, tensors);
      ASSERT_FALSE(code.ok()) << "for: " << says;
      EXPECT_EQ(code.argument, argument) << code.ToString();
      EXPECT_EQ(code.rule, rule) << code.ToString();
      EXPECT_EQ(code.value, value) << code.ToString();
      if (rule != RoutingRule::kNotOnDevice) {
        EXPECT_EQ(code.bound, bound) << code.ToString();
        EXPECT_EQ(code.ToString(), says);
      }
      EXPECT_TRUE(*memory_ == before) << "a refused call wrote something: " << says;
    }
  }
  // A number of the config that is beyond `bound`.
  void ExpectTooSmall(RoutingArgument argument, const std::string& name, std::int64_t value,
                      std::int64_t bound) {
    ExpectRefused(
        argument, RoutingRule::kTooSmall, value, bound,
        name + " must be at least " + std::to_string(bound) + ", got " + std::to_string(value));
  }
  void ExpectTooLarge(RoutingArgument argument, const std::string& name, std::int64_t value,
                      std::int64_t bound) {
    ExpectRefused(
        argument, RoutingRule::kTooLarge, value, bound,
        name + " must be at most " + std::to_string(bound) + ", got " + std::to_string(value));
  }
  // Refused where it means nothing.
  void ExpectTakenIf(bool taken, RoutingArgument argument, const std::string& name) {
    if (taken) return ExpectTaken();
    ExpectRefused(argument, RoutingRule::kUnexpected, 0, 0,
                  name +
                      " must not be given: it means nothing with this method and these "
                      "arguments");
  }
  void ExpectTaken() {
    for (const auto& backend : RoutingBackends()) {
      SCOPED_TRACE(backend->name());
      const RoutingCode code = backend->Route(config, tensors);
      EXPECT_TRUE(code.ok()) << code.ToString();
    }
  }

  RoutingConfig config;
  RoutingTensors tensors;

 private:
  void* Memory() {
    memory_->emplace_back(std::size_t{1} << 16, std::uint8_t{0xa5});
    return memory_->back().data();
  }
  // Of all copies of this.
  std::shared_ptr<std::vector<std::vector<std::uint8_t>>> memory_ =
      std::make_shared<std::vector<std::vector<std::uint8_t>>>();
};

// Everything that CheckRouting knows of one tensor.
struct Wanted {
  Member member;
  RoutingArgument argument;
  std::string name;
  std::int64_t rows;     // least number; 0: its rows are the call's N
  std::int64_t columns;  // 0: a vector
  DType right;
  bool required;
};
std::vector<Wanted> AllTensors() {
  using A = RoutingArgument;
  using T = RoutingTensors;
  return {
      {&T::logits, A::kLogits, "logits", 0, kExperts, DType::kFloat32, true},
      {&T::bias, A::kBias, "bias", kExperts, 0, DType::kFloat32, false},
      {&T::topk_ids, A::kTopKIds, "topk_ids", kRows, kTopK, DType::kInt32, true},
      {&T::topk_weights, A::kTopKWeights, "topk_weights", kRows, kTopK, DType::kFloat32, true},
      {&T::replay_out, A::kReplayOut, "replay_out", kRows, kTopK, DType::kInt16, false},
      {&T::replay_in, A::kReplayIn, "replay_in", kRows, kTopK, DType::kInt16, false},
      {&T::routed, A::kRouted, "routed", kRows, 0, DType::kUint8, true},
  };
}

TEST_F(RoutingCheck, TheRightCallIsTaken) {
  Call().ExpectTaken();
}

// (1) Memory of the right kind, and (2) on the right device.
TEST_F(RoutingCheck, EveryTensorMustBeOnTheDevice) {
  for (const Wanted& tensor : AllTensors()) {
    Call call;
    (call.tensors.*tensor.member).device = MemoryDevice::Cuda(7);
    call.ExpectRefused(tensor.argument, RoutingRule::kNotOnDevice, 7, -1, tensor.name);
    const RoutingCode code = RouteOnHost(call.config, call.tensors);
    EXPECT_EQ(code.bound, -1);
    EXPECT_EQ(code.ToString(), tensor.name + " must be on the host, it is on CUDA device 7");
  }
}
// The check itself, for a device that this machine need not have.
TEST_F(RoutingCheck, OfACallOnADevice) {
  EXPECT_TRUE(CheckRouting(Call(MemoryDevice::Cuda(1)).config, Call(MemoryDevice::Cuda(1)).tensors,
                           MemoryDevice::Cuda(1))
                  .ok());
  for (const Wanted& tensor : AllTensors()) {
    for (const MemoryDevice wrong : {MemoryDevice::Host(), MemoryDevice::Cuda(0)}) {
      Call call(MemoryDevice::Cuda(1));
      (call.tensors.*tensor.member).device = wrong;
      const RoutingCode code = CheckRouting(call.config, call.tensors, MemoryDevice::Cuda(1));
      EXPECT_EQ(code.argument, tensor.argument);
      EXPECT_EQ(code.rule, RoutingRule::kNotOnDevice);
      EXPECT_EQ(code.value, wrong.kind == MemoryDevice::Kind::kHost ? -1 : 0);
      EXPECT_EQ(code.bound, 1);
      EXPECT_EQ(code.ToString(),
                tensor.name + " must be on CUDA device 1, it is on " +
                    (wrong.kind == MemoryDevice::Kind::kHost ? "the host" : "CUDA device 0"));
    }
  }
}

// (3)
TEST_F(RoutingCheck, EveryTensorHasItsRank) {
  for (const Wanted& tensor : AllTensors()) {
    const std::int32_t rank = tensor.columns == 0 ? 1 : 2;
    for (const std::int32_t wrong : {0, 1, 2, 3}) {
      if (wrong == rank) continue;
      Call call;
      (call.tensors.*tensor.member).rank = wrong;
      call.ExpectRefused(tensor.argument, RoutingRule::kRank, wrong, rank,
                         tensor.name + " must have rank " + std::to_string(rank) + ", got " +
                             std::to_string(wrong));
    }
  }
}

// (4) K, or E: neither more nor fewer.
TEST_F(RoutingCheck, EveryTensorHasItsColumns) {
  for (const Wanted& tensor : AllTensors()) {
    if (tensor.argument == RoutingArgument::kLogits || tensor.columns == 0) continue;
    for (const std::int64_t wrong : {std::int64_t{0}, kTopK - 1, kTopK + 1}) {
      Call call;
      Tensor& broken = call.tensors.*tensor.member;
      broken.shape[1] = wrong;
      broken.stride[0] = kTopK + 1;
      call.ExpectRefused(tensor.argument, RoutingRule::kColumns, wrong, kTopK,
                         tensor.name + " must have 8 columns, got " + std::to_string(wrong));
    }
  }
}
TEST_F(RoutingCheck, ABiasHasAsManyElementsAsThereAreExperts) {
  for (const std::int64_t wrong : {std::int64_t{0}, kExperts - 1, kExperts + 1}) {
    Call call;
    call.tensors.bias.shape[0] = wrong;
    call.ExpectRefused(RoutingArgument::kBias, RoutingRule::kColumns, wrong, kExperts,
                       "bias must have 64 elements, got " + std::to_string(wrong));
  }
}
TEST_F(RoutingCheck, ThereAreOneTo1024Experts) {
  for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1025}}) {
    Call call;
    call.tensors.logits = Tensor::Matrix(call.tensors.logits.data, DType::kFloat32, kRows, wrong,
                                         MemoryDevice::Host(), 1100);
    call.ExpectRefused(RoutingArgument::kLogits, RoutingRule::kColumns, wrong, 1024,
                       "logits must have 1 to 1024 columns, got " + std::to_string(wrong));
  }
}

// (5)
TEST_F(RoutingCheck, EveryTensorHasItsType) {
  for (const Wanted& tensor : AllTensors()) {
    for (const DType type : {DType::kFloat32, DType::kBfloat16, DType::kFloat16, DType::kUint8,
                             DType::kInt16, DType::kInt32, DType::kInt64}) {
      const bool logits = tensor.argument == RoutingArgument::kLogits &&
                          (type == DType::kBfloat16 || type == DType::kFloat16);
      const bool weights =
          tensor.argument == RoutingArgument::kTopKWeights && type == DType::kBfloat16;
      Call call;
      (call.tensors.*tensor.member).dtype = type;
      if (type == tensor.right || logits || weights) {
        call.ExpectTaken();
        continue;
      }
      call.ExpectRefused(tensor.argument, RoutingRule::kDType, static_cast<std::int64_t>(type), 0,
                         tensor.name + " has a type that it must not have: " + DTypeName(type));
    }
  }
}
// A number that is no type at all, as a mistaken conversion gives it.
TEST_F(RoutingCheck, ATypeThatDoesNotExistIsRefused) {
  for (const int type : {7, 31, 32, 33, 64, 255}) {
    Call call;
    call.tensors.logits.dtype = static_cast<DType>(type);
    const RoutingCode code = CheckRouting(call.config, call.tensors, MemoryDevice::Host());
    EXPECT_EQ(code.rule, RoutingRule::kDType) << type;
    EXPECT_EQ(code.ToString(), "logits has a type that it must not have: unknown type");
  }
}

// (6) Adjacent elements in a row; rows may be apart, and must not overlap.
TEST_F(RoutingCheck, ElementsOfARowAreAdjacent) {
  for (const Wanted& tensor : AllTensors()) {
    for (const std::int64_t wrong : {2, 0}) {
      Call call;
      Tensor& broken = call.tensors.*tensor.member;
      const std::int32_t inner = tensor.columns == 0 ? 0 : 1;
      broken.stride[inner] = wrong;
      if (inner == 1) broken.stride[0] *= 2;
      call.ExpectRefused(tensor.argument, RoutingRule::kNotContiguous, wrong, 1,
                         tensor.name + " must have adjacent elements in a row, got stride " +
                             std::to_string(wrong));
    }
  }
}
TEST_F(RoutingCheck, RowsDoNotOverlap) {
  for (const Wanted& tensor : AllTensors()) {
    if (tensor.columns == 0) continue;
    for (const std::int64_t wrong : {tensor.columns - 1, std::int64_t{0}}) {
      Call call;
      Tensor& broken = call.tensors.*tensor.member;
      broken.stride[0] = wrong;
      call.ExpectRefused(tensor.argument, RoutingRule::kRowStride, wrong, tensor.columns,
                         tensor.name + " must have a row stride of at least " +
                             std::to_string(tensor.columns) + ", got " + std::to_string(wrong));
    }
  }
}
TEST_F(RoutingCheck, StridesAreNotNegative) {
  for (const Wanted& tensor : AllTensors()) {
    for (const std::int32_t axis : {0, 1}) {
      if (axis == 1 && tensor.columns == 0) continue;
      Call call;
      (call.tensors.*tensor.member).stride[axis] *= -1;
      const RoutingCode code = CheckRouting(call.config, call.tensors, MemoryDevice::Host());
      EXPECT_EQ(code.argument, tensor.argument);
      EXPECT_EQ(code.rule, axis == 0 && tensor.columns != 0 ? RoutingRule::kRowStride
                                                            : RoutingRule::kNotContiguous);
      EXPECT_LT(code.value, 0);
    }
  }
}
TEST_F(RoutingCheck, StridesThatAreNeverTakenDoNotMatter) {
  Call call;
  call.config.top_k = 1;
  for (const Wanted& tensor : AllTensors()) {
    Tensor& one = call.tensors.*tensor.member;
    if (tensor.columns == kTopK) one.shape[1] = 1;
    one.shape[0] = tensor.argument == RoutingArgument::kBias ? kExperts : 1;
    if (tensor.columns != 0) one.stride[0] = 0;
    if (tensor.columns == kTopK) one.stride[1] = 0;
    if (tensor.argument == RoutingArgument::kRouted) one.stride[0] = 0;
  }
  call.ExpectTaken();
}

// (7) Larger allowed, smaller not.
TEST_F(RoutingCheck, EveryTensorHasRowsEnough) {
  for (const Wanted& tensor : AllTensors()) {
    if (tensor.rows != kRows) continue;
    for (const std::int64_t rows : {std::int64_t{0}, kRows - 1}) {
      Call call;
      (call.tensors.*tensor.member).shape[0] = rows;
      call.ExpectRefused(tensor.argument, RoutingRule::kRows, rows, kRows,
                         tensor.name + " must have 6 rows or more, got " + std::to_string(rows));
    }
    Call call;
    (call.tensors.*tensor.member).shape[0] = kRows + 9;
    call.ExpectTaken();
  }
}
TEST_F(RoutingCheck, RowsAreNotNegativeAndFitAnInt32) {
  Call call;
  call.tensors.logits.shape[0] = -1;
  RoutingCode code = CheckRouting(call.config, call.tensors, MemoryDevice::Host());
  EXPECT_EQ(code.argument, RoutingArgument::kLogits);
  EXPECT_EQ(code.rule, RoutingRule::kRows);
  EXPECT_EQ(code.ToString(), "logits must have 0 rows or more, got -1");
  call.tensors.logits.shape[0] = std::int64_t{1} << 31;
  code = CheckRouting(call.config, call.tensors, MemoryDevice::Host());
  EXPECT_EQ(code.argument, RoutingArgument::kLogits);
  EXPECT_EQ(code.rule, RoutingRule::kTooLarge);
  EXPECT_EQ(code.ToString(), "logits must have at most 2147483647 rows, got 2147483648");
}

TEST_F(RoutingCheck, WhatIsNeededIsGiven) {
  for (const Wanted& tensor : AllTensors()) {
    Call call;
    (call.tensors.*tensor.member).data = nullptr;
    if (tensor.argument == RoutingArgument::kReplayIn) {
      call.ExpectTakenIf(false, RoutingArgument::kRouted, "routed");
    } else if (tensor.required) {
      call.ExpectRefused(tensor.argument, RoutingRule::kMissing, 0, 0,
                         tensor.name + " must be given");
    } else {
      call.ExpectTaken();
    }
  }
}
TEST_F(RoutingCheck, WhatMeansNothingIsRefused) {
  for (const MethodInfo& method : AllMethods()) {
    Call plain;
    plain.config = {method.id, 1};
    plain.tensors.bias = {};
    for (const Member member : {&RoutingTensors::topk_ids, &RoutingTensors::topk_weights,
                                &RoutingTensors::replay_out, &RoutingTensors::replay_in}) {
      (plain.tensors.*member).shape[1] = 1;
    }
    plain.ExpectTaken();
    Call call = plain;
    call.tensors.bias = Call().tensors.bias;
    std::vector<float> bias(kExperts);
    call.tensors.bias.data = bias.data();
    call.ExpectTakenIf(method.takes_bias, RoutingArgument::kBias, "bias");
    call = plain;
    call.config.scale = 2.0f;
    call.ExpectTakenIf(method.takes_scale, RoutingArgument::kScale, "scale");
    call = plain;
    call.config.normalize = false;
    call.ExpectTakenIf(method.id == RoutingMethod::kSigmoidRenorm, RoutingArgument::kNormalize,
                       "normalize");
    call = plain;
    call.config.num_groups = 2;
    if (method.takes_groups) {
      call.ExpectTaken();
    } else {
      call.ExpectTooLarge(RoutingArgument::kNumGroups, "num_groups", 2, 1);
    }
  }
}

// ---- the config

TEST_F(RoutingCheck, MethodsWithoutANumberAreRefused) {
  for (const int number : {10, 11, 255}) {
    Call call;
    call.config.method = static_cast<RoutingMethod>(number);
    call.ExpectRefused(RoutingArgument::kMethod, RoutingRule::kUnknown, number, 9,
                       "method must be in [0, 9], got " + std::to_string(number));
  }
}
TEST_F(RoutingCheck, TopKIsInItsRange) {
  for (const std::int32_t k : {-1, 0}) {
    Call call;
    call.config.top_k = k;
    call.ExpectTooSmall(RoutingArgument::kTopK, "top_k", k, 1);
  }
  Call call;
  call.config.top_k = 33;
  call.ExpectTooLarge(RoutingArgument::kTopK, "top_k", 33, 32);
  call.tensors.logits.shape[1] = call.tensors.bias.shape[0] = 7;
  call.config.top_k = 8;
  call.ExpectTooLarge(RoutingArgument::kTopK, "top_k", 8, 7);
  for (const MethodInfo& method : AllMethods()) {
    Call other;
    other.tensors.bias = {};
    other.config = {method.id, method.max_k + 1};
    other.ExpectTooLarge(RoutingArgument::kTopK, "top_k", method.max_k + 1, method.max_k);
  }
}
TEST_F(RoutingCheck, GroupsAreInTheirRange) {
  Call call;
  call.config.num_groups = 0;
  call.ExpectTooSmall(RoutingArgument::kNumGroups, "num_groups", 0, 1);
  call.config.num_groups = 33;
  call.ExpectTooLarge(RoutingArgument::kNumGroups, "num_groups", 33, 32);
  call.config.num_groups = 5;
  call.ExpectRefused(RoutingArgument::kNumGroups, RoutingRule::kNotDivisor, 5, 64,
                     "num_groups must divide the 64 experts, got 5");
  call.config.num_groups = 16;
  call.config.topk_groups = 0;
  call.ExpectTooSmall(RoutingArgument::kTopKGroups, "topk_groups", 0, 1);
  call.config.topk_groups = 17;
  call.ExpectTooLarge(RoutingArgument::kTopKGroups, "topk_groups", 17, 16);
  call.config.topk_groups = 1;
  call.ExpectRefused(RoutingArgument::kTopKGroups, RoutingRule::kTooFewInGroups, 4, 8,
                     "topk_groups must keep groups of 8 experts or more together, got 4");
  call.config.topk_groups = 2;  // exactly K experts
  call.ExpectTaken();
}
TEST_F(RoutingCheck, TheScaleIsFinite) {
  for (const float scale :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    Call call;
    call.config.scale = scale;
    call.ExpectRefused(RoutingArgument::kScale, RoutingRule::kNotFinite, 0, 0,
                       "scale must be finite");
  }
}

// The rules hold for N = 0, too; only the data may be missing then.
TEST_F(RoutingCheck, NoRowsStillMeanARightConfig) {
  Call call;
  for (const Wanted& tensor : AllTensors()) {
    (call.tensors.*tensor.member).shape[0] = tensor.argument == RoutingArgument::kBias ? 64 : 0;
    (call.tensors.*tensor.member).data = nullptr;
  }
  call.ExpectTaken();
  call.config.top_k = 33;
  call.ExpectTooLarge(RoutingArgument::kTopK, "top_k", 33, 32);
}

}  // namespace
}  // namespace waymark::kernels
