// The body of the CUDA kernels, on an emulated warp, against RouteOnHost: every variant that the
// dispatcher can reach, bit for bit. What RouteOnHost gives is judged by the routing suite.
#include "kernels/routing_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/support/emulated_routing.h"
#include "tests/unit/kernels/guarded_buffer.h"

namespace waymark::kernels {
namespace {

std::uint64_t Seed() {
  static const std::uint64_t seed = [] {
    const char* const given = std::getenv("WAYMARK_SEED");
    const std::uint64_t s =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::cout << "WAYMARK_SEED=" << s << "\n";
    return s;
  }();
  return seed;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Elements that end `behind` elements before readable memory does.
struct Memory {
  Memory(DType type, std::int64_t elements, std::int64_t behind)
      : buffer(DTypeBytes(type) * static_cast<std::size_t>(elements + behind)),
        data(buffer.data()) {}
  GuardedBuffer buffer;
  std::uint8_t* data;
};

std::uint16_t ToFloat16(float value) {
  // Nearest by search: the 2^16 numbers are few, and this shares nothing with what is tested.
  static const auto* const table = [] {
    auto* all = new std::vector<std::pair<float, std::uint16_t>>();
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      if ((bits & 0x7fff) > 0x7c00) continue;
      all->push_back({routing::FromFloat16(static_cast<std::uint16_t>(bits)),
                      static_cast<std::uint16_t>(bits)});
    }
    std::sort(all->begin(), all->end());
    return all;
  }();
  if (value != value) return 0xfe01;
  if (value == 0.0f) return std::signbit(value) ? 0x8000 : 0;
  return std::lower_bound(table->begin(), table->end(), std::pair<float, std::uint16_t>{value, 0})
      ->second;
}

struct Case {
  RoutingConfig config;
  std::int32_t experts = 0;
  DType logits = DType::kFloat32;
  DType weights = DType::kFloat32;
  std::int64_t stride_gap = 0;  // elements between rows
  std::int64_t behind = 0;      // elements of logits behind the last: moves them off alignment
  bool bias = false;
  bool replay = false;
  bool record = true;

  [[nodiscard]] std::string ToString() const {
    return std::string(RoutingMethodName(config.method)) + " E=" + std::to_string(experts) +
           " K=" + std::to_string(config.top_k) + " groups " + std::to_string(config.num_groups) +
           "/" + std::to_string(config.topk_groups) + " " + DTypeName(logits) + " -> " +
           DTypeName(weights) + " gap " + std::to_string(stride_gap) + " behind " +
           std::to_string(behind) + (bias ? " bias" : "") + (replay ? " replay" : "") +
           (record ? " record" : "");
  }
};

enum Family { kNormal, kTies, kEqual, kSpecial, kLowest, kSameLane, kFamilies };

float Draw(int family, std::int32_t expert, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0.0f, 2.0f);
  switch (family) {
    case kTies:
      return static_cast<float>(static_cast<int>(random() % 5)) / 4 - 1;
    case kEqual:
      return random() % 2 == 0 ? 0.0f : -0.0f;
    case kSpecial: {
      constexpr float kValues[] = {kInfinity, -kInfinity, kNan, -kNan, 1e-40f, -1e-40f,
                                   3e38f,     -3e38f,     0.0f, -0.0f, 1.0f};
      return kValues[random() % std::size(kValues)];
    }
    case kLowest:
      return random() % 16 == 0 ? normal(random) : (random() % 2 == 0 ? -kInfinity : kNan);
    case kSameLane:  // lanes that give many: the refill
      return expert / 4 % 32 == 3 ? 10 + normal(random) : normal(random);
    default:
      return normal(random);
  }
}

// Runs both and compares.
void Check(const Case& c) {
  SCOPED_TRACE(c.ToString());
  std::mt19937_64 random(Seed());
  constexpr std::int64_t kRows = kFamilies;
  const std::int32_t k = c.config.top_k;
  const std::int64_t stride = c.experts + c.stride_gap;
  const Memory logits(c.logits, (kRows - 1) * stride + c.experts, c.behind);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int32_t e = 0; e < c.experts; ++e) {
      const float value = Draw(static_cast<int>(row), e, random);
      const std::int64_t at = row * stride + e;
      if (c.logits == DType::kFloat32) {
        reinterpret_cast<float*>(logits.data)[at] = value;
      } else {
        reinterpret_cast<std::uint16_t*>(logits.data)[at] =
            c.logits == DType::kFloat16 ? ToFloat16(value)
            : value != value            ? std::uint16_t{0x7fc1}
                                        : routing::ToBfloat16(value);
      }
    }
  }
  const Memory bias(DType::kFloat32, c.experts, c.behind % 4);
  for (std::int32_t e = 0; e < c.experts; ++e) {
    // A large common offset, in steps below an ulp of bfloat16.
    reinterpret_cast<float*>(bias.data)[e] = 8.0f + static_cast<float>(random() % 64) / 4096;
  }
  const std::int64_t replay_stride = k + 4;
  const Memory replay(DType::kInt16, kRows * replay_stride, 0);
  auto* const recorded = reinterpret_cast<std::int16_t*>(replay.data);
  for (std::int64_t row = 0; row < kRows; ++row) {
    std::vector<std::int16_t> ids(static_cast<std::size_t>(c.experts));
    std::iota(ids.begin(), ids.end(), std::int16_t{0});
    std::shuffle(ids.begin(), ids.end(), random);
    std::copy_n(ids.begin(), k, recorded + row * replay_stride);
    std::int16_t& one =
        recorded[row * replay_stride +
                 static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(k))];
    switch (random() % 5) {
      case 0:
        one = -1;
        break;
      case 1:
        one = static_cast<std::int16_t>(c.experts);
        break;
      case 2:
        one = recorded[row * replay_stride];  // twice, unless it is that very one
        break;
      default:
        break;
    }
  }

  // No two matrices have the same stride: none is taken for another's.
  struct Outputs {
    explicit Outputs(const Case& c)
        : ids(DType::kInt32, kRows * (c.config.top_k + 1), 0),
          weights(c.weights, kRows * (c.config.top_k + 2), 0),
          recorded(DType::kInt16, kRows * (c.config.top_k + 3), 0),
          routed(DType::kUint8, kRows, 0) {}
    Memory ids, weights, recorded, routed;
  };
  const Outputs wanted(c), got(c);
  const auto tensors = [&](const Outputs& out) {
    RoutingTensors t;
    const auto matrix = [&](const Memory& memory, DType type, std::int64_t columns,
                            std::int64_t row_stride) {
      return Tensor::Matrix(memory.data, type, kRows, columns, MemoryDevice::Host(), row_stride);
    };
    t.logits = matrix(logits, c.logits, c.experts, stride);
    if (c.bias) t.bias = Tensor::Vector(bias.data, DType::kFloat32, c.experts);
    t.topk_ids = matrix(out.ids, DType::kInt32, k, k + 1);
    t.topk_weights = matrix(out.weights, c.weights, k, k + 2);
    if (c.record) t.replay_out = matrix(out.recorded, DType::kInt16, k, k + 3);
    if (c.replay) {
      t.replay_in = matrix(replay, DType::kInt16, k, k + 4);
      t.routed = Tensor::Vector(out.routed.data, DType::kUint8, kRows);
    }
    return t;
  };
  ASSERT_EQ(RouteOnHost(c.config, tensors(wanted)).ToString(), "ok");
  std::string fault;
  ASSERT_EQ(RouteEmulated(c.config, tensors(got), Seed(), fault).ToString(), "ok");
  ASSERT_EQ(fault, "");
  const auto same = [](const Memory& a, const Memory& b) {
    return std::memcmp(a.data, b.data, a.buffer.size()) == 0;
  };
  EXPECT_TRUE(same(wanted.ids, got.ids));
  EXPECT_TRUE(same(wanted.weights, got.weights));
  EXPECT_TRUE(same(wanted.recorded, got.recorded));
  EXPECT_TRUE(same(wanted.routed, got.routed));
}

constexpr DType kLogitTypes[] = {DType::kFloat32, DType::kBfloat16, DType::kFloat16};

// Every method, every tier (and at least two numbers of experts in it), every type.
class RoutingKernel : public ::testing::TestWithParam<DType> {};

TEST_P(RoutingKernel, EveryVariantGivesWhatTheHostGives) {
  std::mt19937_64 random(Seed() + 1);
  std::int32_t below = 0;
  for (const std::int32_t tier : routing::Tiers::kAll) {
    const std::int32_t above = tier * routing::kQuadExperts;
    const std::int32_t drawn =
        below + 1 +
        static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(above - below - 1));
    for (const std::int32_t experts : {above, drawn, drawn / 4 * 4 + 4}) {
      routing::Methods::ForEach([&]<class M>() {
        Case c;
        c.config.method = M::kId;
        c.experts = experts;
        c.logits = GetParam();
        const std::int32_t most = std::min(M::kMaxK, experts);
        c.config.top_k = 1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(most));
        c.weights = random() % 2 == 0 ? DType::kFloat32 : DType::kBfloat16;
        c.stride_gap = static_cast<std::int64_t>(random() % 3) * 2;
        c.behind = static_cast<std::int64_t>(random() % 3);
        c.bias = M::kTakesBias && random() % 4 != 0;
        c.replay = random() % 2 == 0;
        c.record = random() % 4 != 0;
        if (M::kTakesScale) c.config.scale = 2.5f;
        if (M::kId == RoutingMethod::kSigmoidRenorm) c.config.normalize = random() % 2 == 0;
        Check(c);
        if (!M::kTakesGroups) return;
        // All the ways to cut so many experts into groups: lanes' halves, powers of two, and
        // others.
        for (std::int32_t groups = 2; groups <= std::min(kMaxGroups, experts); ++groups) {
          if (experts % groups != 0) continue;
          c.config.num_groups = groups;
          c.config.topk_groups =
              1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(groups));
          c.config.top_k = std::min({kMaxTopK, c.config.topk_groups * (experts / groups),
                                     1 + static_cast<std::int32_t>(random() % 32)});
          Check(c);
        }
      });
    }
    below = above;
  }
}

TEST_P(RoutingKernel, EveryTopKAndEveryAlignment) {
  for (std::int32_t k = 1; k <= kMaxTopK; ++k) {
    Case c;
    c.config = {.method = RoutingMethod::kRenormalize, .top_k = k};
    c.experts = 256;
    c.logits = GetParam();
    c.stride_gap = k % 5;
    c.behind = k % 9;
    c.replay = k % 2 == 0;
    Check(c);
    c.config.method = RoutingMethod::kDefault;
    c.experts = std::max(k, 33);
    Check(c);
    c.experts = k;  // all of them
    Check(c);
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, RoutingKernel, ::testing::ValuesIn(kLogitTypes),
                         [](const auto& type) { return std::string(DTypeName(type.param)); });

}  // namespace
}  // namespace waymark::kernels
