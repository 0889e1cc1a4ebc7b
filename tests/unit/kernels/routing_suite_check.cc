// The one check: what is refused, in which words, and that nothing is written then. Through every
// backend, so that none forgets to ask it. The words have the argument, the rule and the value.
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

class RoutingCheck : public RoutingSuite {};

template <typename... Parts>
std::string Cat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kExperts = 64;
constexpr std::int64_t kTopK = 8;

// A call in which everything is right, and all tensors given; memory enough for whatever a test
// says that the tensors are.
struct Call {
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
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void* Memory() {
    memory.emplace_back(std::size_t{1} << 16, std::uint8_t{0xa5});
    return memory.back().data();
  }

  RoutingConfig config;
  RoutingTensors tensors;
  std::vector<std::vector<std::uint8_t>> memory;
};
using Change = std::function<void(Call&)>;

// What `change` makes of the right call.
void ExpectRefused(const std::string& says, const Change& change) {
  Call call;
  change(call);
  const auto before = call.memory;
  for (const auto& backend : RoutingBackends()) {
    SCOPED_TRACE(backend->name());
    EXPECT_EQ(backend->Route(call.config, call.tensors).ToString(), says);
    EXPECT_TRUE(call.memory == before) << "a refused call wrote something: " << says;
  }
}
void ExpectTaken(const Change& change) {
  Call call;
  change(call);
  for (const auto& backend : RoutingBackends()) {
    const RoutingCode code = backend->Route(call.config, call.tensors);
    EXPECT_TRUE(code.ok()) << backend->name() << ": " << code.ToString();
  }
}
// A field of the config.
template <class T>
void ExpectRefused(T RoutingConfig::*field, std::type_identity_t<T> value,
                   const std::string& says) {
  ExpectRefused(says, [&](Call& call) { call.config.*field = value; });
}

// Everything that CheckRouting knows of one tensor.
struct Wanted {
  Tensor RoutingTensors::*member;
  std::string name;
  std::int64_t rows;     // least number; 0: its rows are the call's N
  std::int64_t columns;  // 0: a vector
  DType right;
  bool required;

  // The call with a change of this tensor.
  [[nodiscard]] Change With(const std::function<void(Tensor&)>& change) const {
    return [this, change](Call& call) { change(call.tensors.*member); };
  }
  void Refused(const std::string& says, const std::function<void(Tensor&)>& change) const {
    ExpectRefused(name + " " + says, With(change));
  }
};
std::vector<Wanted> AllTensors() {
  using T = RoutingTensors;
  return {
      {&T::logits, "logits", 0, kExperts, DType::kFloat32, true},
      {&T::bias, "bias", kExperts, 0, DType::kFloat32, false},
      {&T::topk_ids, "topk_ids", kRows, kTopK, DType::kInt32, true},
      {&T::topk_weights, "topk_weights", kRows, kTopK, DType::kFloat32, true},
      {&T::replay_out, "replay_out", kRows, kTopK, DType::kInt16, false},
      {&T::replay_in, "replay_in", kRows, kTopK, DType::kInt16, false},
      {&T::routed, "routed", kRows, 0, DType::kUint8, true},
  };
}

TEST_F(RoutingCheck, TheRightCallIsTaken) {
  ExpectTaken([](Call&) {});
}

// Every backend asks for its own device; the words, for devices that this machine need not have.
TEST_F(RoutingCheck, EveryTensorIsOnTheDevice) {
  const MemoryDevice here = MemoryDevice::Cuda(1);
  const Call right(here);
  EXPECT_TRUE(CheckRouting(right.config, right.tensors, here).ok());
  for (const Wanted& of : AllTensors()) {
    Call call;
    (call.tensors.*of.member).device = MemoryDevice::Cuda(7);
    for (const auto& backend : RoutingBackends()) {
      const RoutingCode code = backend->Route(call.config, call.tensors);
      EXPECT_EQ(code.rule, RoutingRule::kNotOnDevice) << backend->name() << ", " << of.name;
    }
    EXPECT_EQ(RouteOnHost(call.config, call.tensors).ToString(),
              of.name + " must be on the host, it is on CUDA device 7");
    for (const auto& [wrong, name] : {std::pair(MemoryDevice::Host(), "the host"),
                                      std::pair(MemoryDevice::Cuda(0), "CUDA device 0")}) {
      Call other(here);
      (other.tensors.*of.member).device = wrong;
      EXPECT_EQ(CheckRouting(other.config, other.tensors, here).ToString(),
                of.name + " must be on CUDA device 1, it is on " + name);
    }
  }
}

TEST_F(RoutingCheck, EveryTensorHasItsShape) {
  for (const Wanted& of : AllTensors()) {
    const std::int32_t rank = of.columns == 0 ? 1 : 2;
    for (const std::int32_t wrong : {0, 3 - rank, 3}) {
      of.Refused(Cat("must have rank ", rank, ", got ", wrong),
                 [&](Tensor& tensor) { tensor.rank = wrong; });
    }
    for (const std::int64_t wrong : {std::int64_t{0}, kTopK - 1, kTopK + 1}) {
      if (of.columns != kTopK) continue;
      of.Refused(Cat("must have 8 columns, got ", wrong), [&](Tensor& tensor) {
        tensor.shape[1] = wrong;
        tensor.stride[0] = kTopK + 1;
      });
    }
    if (of.rows != kRows) continue;
    for (const std::int64_t wrong : {std::int64_t{0}, kRows - 1}) {
      of.Refused(Cat("must have 6 rows or more, got ", wrong),
                 [&](Tensor& tensor) { tensor.shape[0] = wrong; });
    }
    ExpectTaken(of.With([](Tensor& tensor) { tensor.shape[0] = kRows + 9; }));
  }
  for (const std::int64_t wrong : {std::int64_t{0}, kExperts - 1, kExperts + 1}) {
    ExpectRefused(Cat("bias must have 64 elements, got ", wrong),
                  [&](Call& call) { call.tensors.bias.shape[0] = wrong; });
  }
  for (const std::int64_t wrong : {-1, 0, 1025}) {
    ExpectRefused(Cat("logits must have 1 to 1024 columns, got ", wrong), [&](Call& call) {
      call.tensors.logits.shape[1] = wrong;
      call.tensors.logits.stride[0] = 1100;
    });
  }
  ExpectRefused("logits must have 0 rows or more, got -1",
                [](Call& call) { call.tensors.logits.shape[0] = -1; });
  ExpectRefused("logits must have at most 2147483647 rows, got 2147483648",
                [](Call& call) { call.tensors.logits.shape[0] = std::int64_t{1} << 31; });
}

TEST_F(RoutingCheck, EveryTensorHasItsType) {
  for (const Wanted& of : AllTensors()) {
    for (const DType type : {DType::kFloat32, DType::kBfloat16, DType::kFloat16, DType::kUint8,
                             DType::kInt16, DType::kInt32, DType::kInt64}) {
      const bool narrow =
          (of.name == "logits" && type == DType::kFloat16) ||
          ((of.name == "logits" || of.name == "topk_weights") && type == DType::kBfloat16);
      const auto change = [type](Tensor& tensor) { tensor.dtype = type; };
      if (type == of.right || narrow) {
        ExpectTaken(of.With(change));
      } else {
        of.Refused(Cat("has a type that it must not have: ", DTypeName(type)), change);
      }
    }
  }
  // A number that is no type at all, as a mistaken conversion gives it.
  for (const int type : {7, 31, 32, 33, 64, 255}) {
    ExpectRefused("logits has a type that it must not have: unknown type",
                  [&](Call& call) { call.tensors.logits.dtype = static_cast<DType>(type); });
  }
}

// Adjacent elements in a row; rows may be apart, and must not overlap.
TEST_F(RoutingCheck, EveryTensorHasItsStrides) {
  for (const Wanted& of : AllTensors()) {
    const int inner = of.columns == 0 ? 0 : 1;
    for (const std::int64_t wrong : {2, 0, -1}) {
      of.Refused(Cat("must have adjacent elements in a row, got stride ", wrong),
                 [&](Tensor& tensor) {
                   tensor.stride[inner] = wrong;
                   if (inner == 1) tensor.stride[0] *= 2;
                 });
    }
    if (inner == 0) continue;
    for (const std::int64_t wrong : {of.columns - 1, std::int64_t{0}, -of.columns}) {
      of.Refused(Cat("must have a row stride of at least ", of.columns, ", got ", wrong),
                 [&](Tensor& tensor) { tensor.stride[0] = wrong; });
    }
  }
  // Strides that are never taken do not matter.
  ExpectTaken([](Call& call) {
    call.config.top_k = 1;
    for (const Wanted& of : AllTensors()) {
      Tensor& one = call.tensors.*of.member;
      if (of.columns == kTopK) one.shape[1] = 1;
      one.shape[0] = of.name == "bias" ? kExperts : 1;
      if (of.columns != 0 || of.name == "routed") one.stride[0] = 0;
      if (of.columns == kTopK) one.stride[1] = 0;
    }
  });
}

constexpr char kMeansNothing[] =
    " must not be given: it means nothing with this method and these arguments";

TEST_F(RoutingCheck, WhatIsNeededIsGiven) {
  for (const Wanted& of : AllTensors()) {
    const auto nothing = of.With([](Tensor& tensor) { tensor.data = nullptr; });
    if (of.name == "replay_in") {
      ExpectRefused(Cat("routed", kMeansNothing), nothing);
    } else if (of.required) {
      ExpectRefused(of.name + " must be given", nothing);
    } else {
      ExpectTaken(nothing);
    }
  }
}

TEST_F(RoutingCheck, WhatMeansNothingIsRefused) {
  for (const MethodInfo& method : AllMethods()) {
    const auto expect = [&](bool taken, const std::string& says, const Change& change) {
      const Change all = [&](Call& call) {
        call.config = {method.id, 1};
        call.tensors.bias = {};
        for (const Wanted& of : AllTensors()) {
          if (of.columns == kTopK) (call.tensors.*of.member).shape[1] = 1;
        }
        change(call);
      };
      taken ? ExpectTaken(all) : ExpectRefused(says, all);
    };
    expect(true, "", [](Call&) {});
    expect(method.takes_bias, Cat("bias", kMeansNothing), [](Call& call) {
      call.tensors.bias = Tensor::Vector(call.Memory(), DType::kFloat32, kExperts);
    });
    expect(method.takes_scale, Cat("scale", kMeansNothing),
           [](Call& call) { call.config.scale = 2.0f; });
    expect(method.id == RoutingMethod::kSigmoidRenorm, Cat("normalize", kMeansNothing),
           [](Call& call) { call.config.normalize = false; });
    expect(method.takes_groups, "num_groups must be at most 1, got 2",
           [](Call& call) { call.config.num_groups = 2; });
    const int most = method.max_k;
    expect(false, Cat("top_k must be at most ", most, ", got ", most + 1),
           [&](Call& call) { call.config.top_k = most + 1; });
  }
}

TEST_F(RoutingCheck, NumbersAreInTheirRange) {
  using C = RoutingConfig;
  for (const int number : {10, 11, 255}) {
    ExpectRefused(&C::method, static_cast<RoutingMethod>(number),
                  Cat("method must be in [0, 9], got ", number));
  }
  ExpectRefused(&C::top_k, -1, "top_k must be at least 1, got -1");
  ExpectRefused(&C::top_k, 0, "top_k must be at least 1, got 0");
  ExpectRefused(&C::top_k, 33, "top_k must be at most 32, got 33");
  ExpectRefused("top_k must be at most 7, got 8",
                [](Call& call) { call.tensors.logits.shape[1] = call.tensors.bias.shape[0] = 7; });
  ExpectRefused(&C::num_groups, 0, "num_groups must be at least 1, got 0");
  ExpectRefused(&C::num_groups, 33, "num_groups must be at most 32, got 33");
  ExpectRefused(&C::num_groups, 5, "num_groups must divide the 64 experts, got 5");
  const auto kept = [](std::int32_t groups) {
    return [groups](Call& call) {
      call.config.num_groups = 16;
      call.config.topk_groups = groups;
    };
  };
  ExpectRefused("topk_groups must be at least 1, got 0", kept(0));
  ExpectRefused("topk_groups must be at most 16, got 17", kept(17));
  ExpectRefused("topk_groups must keep groups of 8 experts or more together, got 4", kept(1));
  ExpectTaken(kept(2));  // exactly K experts
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float scale : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()})
    ExpectRefused(&C::scale, scale, "scale must be finite");
}

// The rules hold for N = 0, too; only the data may be missing then.
TEST_F(RoutingCheck, NoRowsStillMeanARightConfig) {
  const auto empty = [](std::int32_t top_k) {
    return [top_k](Call& call) {
      for (const Wanted& of : AllTensors()) {
        (call.tensors.*of.member).shape[0] = of.name == "bias" ? kExperts : 0;
        (call.tensors.*of.member).data = nullptr;
      }
      call.config.top_k = top_k;
    };
  };
  ExpectTaken(empty(kTopK));
  ExpectRefused("top_k must be at most 32, got 33", empty(33));
}

}  // namespace
}  // namespace waymark::kernels
