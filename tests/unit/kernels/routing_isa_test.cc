// Routing in vectors against the plain form, to the last bit of every output, on every instruction
// set this machine has. What the plain form itself must do is the suite's business.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/isa.h"
#include "kernels/routing.h"
#include "kernels/routing_math.h"
#include "tests/unit/kernels/guarded_buffer.h"

namespace waymark::kernels {
namespace {

std::uint64_t Seed() {
  const char* given = std::getenv("WAYMARK_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "WAYMARK_SEED=" << seed << "\n";
  return seed;
}

std::int32_t Between(std::int32_t least, std::int32_t most, std::mt19937_64& random) {
  return std::uniform_int_distribution<std::int32_t>(least, most)(random);
}

// ---- inputs

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The bits of a logit; any bits are a logit.
std::uint32_t LogitBits(float value, DType type) {
  switch (type) {
    case DType::kBfloat16:
      return value != value ? 0xffc1u : routing::ToBfloat16(value);
    case DType::kFloat16: {
      // Not rounded to nearest, which does not matter here.
      const std::uint32_t bits = routing::Bits(value);
      const std::uint32_t sign = bits >> 16 & 0x8000u;
      if (value != value) return sign | 0x7e01u;
      if (std::fabs(value) >= 65504.0f) return sign | 0x7c00u;
      return sign | static_cast<std::uint32_t>(
                        std::fabs(value) < 0x1p-14f
                            ? std::fabs(value) * 0x1p24f
                            : static_cast<float>((bits >> 13 & 0x3ffffu) - ((127 - 15) << 10)));
    }
    default:
      return routing::Bits(value);
  }
}

std::vector<std::uint32_t> MakeLogits(std::int32_t experts, DType type, std::mt19937_64& random) {
  const float nasty[] = {kNaN,
                         -kNaN,
                         kInfinity,
                         -kInfinity,
                         0.0f,
                         -0.0f,
                         1e-40f,
                         -1e-40f,
                         1.4e-45f,
                         1e-7f,
                         -1e-7f,
                         std::numeric_limits<float>::max(),
                         std::numeric_limits<float>::lowest(),
                         87.0f,
                         -87.0f,
                         -87.00001f,
                         88.8f,
                         -103.9f,
                         1.0f,
                         -1.0f};
  const std::int32_t family = Between(0, 9, random);
  const std::int32_t special = Between(0, std::size(nasty) - 1, random);
  const float scale = std::array{0.01f, 1.0f, 4.0f, 60.0f}[random() % 4];
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<std::uint32_t> logits;
  for (std::int32_t e = 0; e < experts; ++e) {
    const float x = normal(random);
    const auto bits = [&](float value) { return LogitBits(value, type); };
    switch (family) {
      case 0:  // few values: ties, of more than can be ranked at once
        logits.push_back(bits(static_cast<float>(Between(-2, 2, random))));
        break;
      case 1:  // some ties
        logits.push_back(bits(std::round(x * 8.0f) / 8.0f));
        break;
      case 2:  // one value
        logits.push_back(bits(nasty[special]));
        break;
      case 3:  // nasty ones among others
        logits.push_back(bits(Between(0, 3, random) == 0 ? nasty[random() % std::size(nasty)] : x));
        break;
      case 4:  // nothing else
        logits.push_back(bits(nasty[random() % std::size(nasty)]));
        break;
      case 5:  // any bits
        logits.push_back(static_cast<std::uint32_t>(random()));
        break;
      case 6:  // few that are finite
        logits.push_back(bits(Between(0, 15, random) == 0 ? x : -kInfinity));
        break;
      case 7:  // the greatest last
        logits.push_back(bits(static_cast<float>(e) / 64.0f - 3.0f));
        break;
      case 8:  // the greatest together, so that the columns say little
        logits.push_back(bits(e % 64 < 5 ? 10.0f + x : x));
        break;
      default:
        logits.push_back(bits(x));
    }
  }
  return logits;
}

std::vector<float> MakeBias(std::int32_t experts, std::mt19937_64& random) {
  const std::int32_t family = Between(0, 3, random);
  const float offset = family == 1 ? 9.0f : 0.0f;
  std::normal_distribution<float> normal(offset, 0.05f);
  std::vector<float> bias;
  for (std::int32_t e = 0; e < experts; ++e) {
    float b = normal(random);
    if (family == 2) b = static_cast<float>(Between(0, 2, random));
    if (family == 3 && Between(0, 3, random) == 0) {
      b = std::array{kNaN, kInfinity, -kInfinity, -0.0f}[random() % 4];
    }
    bias.push_back(b);
  }
  return bias;
}

// ---- one call

struct Case {
  RoutingConfig config;
  std::int32_t experts = 0;
  std::int64_t rows = 0;
  DType logits_type = DType::kFloat32;
  DType weights_type = DType::kFloat32;
  bool bias = false;
  bool records = false;
  bool replays = false;
  // Elements from the end of a row to the next, of logits, ids, weights, replay_out, replay_in.
  std::array<std::int64_t, 5> gaps{};
  std::int64_t more_rows = 0;  // of the outputs
};

std::string Describe(const Case& c) {
  return std::string(RoutingMethodName(c.config.method)) + ", E " + std::to_string(c.experts) +
         ", K " + std::to_string(c.config.top_k) + ", " + DTypeName(c.logits_type) + " to " +
         DTypeName(c.weights_type) + ", groups " + std::to_string(c.config.topk_groups) + " of " +
         std::to_string(c.config.num_groups) + (c.bias ? ", bias" : "") +
         (c.records ? ", recording" : "") + (c.replays ? ", replaying" : "");
}

// A tensor of two axes that ends where the memory ends; filled with a pattern.
struct Memory {
  Memory(DType type, std::int64_t rows, std::int64_t columns, std::int64_t gap)
      : bytes(DTypeBytes(type)),
        stride(columns + gap),
        buffer(rows == 0 ? 0 : static_cast<std::size_t>((rows - 1) * stride + columns) * bytes),
        tensor(Tensor::Matrix(buffer.data(), type, rows, columns, MemoryDevice::Host(), stride)) {
    std::fill_n(buffer.data(), buffer.size(), std::uint8_t{0xa5});
  }
  void Set(std::int64_t row, std::int64_t column, std::uint32_t bits) {
    std::memcpy(buffer.data() + static_cast<std::size_t>(row * stride + column) * bytes, &bits,
                bytes);
  }

  const std::size_t bytes;
  const std::int64_t stride;
  const GuardedBuffer buffer;
  const Tensor tensor;
};

struct Outputs {
  explicit Outputs(const Case& c)
      : ids(DType::kInt32, c.rows + c.more_rows, c.config.top_k, c.gaps[1]),
        weights(c.weights_type, c.rows + c.more_rows, c.config.top_k, c.gaps[2]),
        replay(DType::kInt16, c.rows + c.more_rows, c.config.top_k, c.gaps[3]),
        routed(DType::kUint8, 1, c.rows, 0) {}

  Memory ids, weights, replay, routed;
};

bool Same(const Memory& a, const Memory& b) {
  return std::memcmp(a.buffer.data(), b.buffer.data(), a.buffer.size()) == 0;
}

// Rows of distinct ids, in any order; every third is missing.
void FillReplay(const Case& c, Memory& replay, std::mt19937_64& random) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(c.experts));
  std::iota(ids.begin(), ids.end(), 0);
  const std::int32_t last = c.config.top_k - 1;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    std::shuffle(ids.begin(), ids.end(), random);
    for (std::int32_t k = 0; k <= last; ++k)
      replay.Set(row, k, static_cast<std::uint32_t>(ids[static_cast<std::size_t>(k)]));
    if (Between(0, 2, random) != 0) continue;
    const std::int32_t broken[] = {-1, -2, c.experts, INT16_MIN, INT16_MAX, ids[0], c.experts, -1};
    // ids[0] at position 0 leaves the row as it is.
    replay.Set(row, Between(0, last, random),
               static_cast<std::uint32_t>(broken[random() % std::size(broken)]));
  }
}

// Returns false at the first difference.
bool Check(const Case& c, std::mt19937_64& random) {
  Memory logits(c.logits_type, c.rows, c.experts, c.gaps[0]);
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const auto bits = MakeLogits(c.experts, c.logits_type, random);
    for (std::int32_t e = 0; e < c.experts; ++e)
      logits.Set(row, e, bits[static_cast<std::size_t>(e)]);
  }
  Memory bias(DType::kFloat32, 1, c.experts, 0);
  const auto values = MakeBias(c.experts, random);
  for (std::int32_t e = 0; e < c.experts; ++e)
    bias.Set(0, e, routing::Bits(values[static_cast<std::size_t>(e)]));
  Memory replay(DType::kInt16, c.rows, c.config.top_k, c.gaps[4]);
  FillReplay(c, replay, random);

  const auto route = [&](const Outputs& outputs, Isa isa) {
    RoutingTensors tensors;
    tensors.logits = logits.tensor;
    if (c.bias) tensors.bias = Tensor::Vector(bias.tensor.data, DType::kFloat32, c.experts);
    tensors.topk_ids = outputs.ids.tensor;
    tensors.topk_weights = outputs.weights.tensor;
    if (c.records) tensors.replay_out = outputs.replay.tensor;
    if (c.replays) {
      tensors.replay_in = replay.tensor;
      tensors.routed = Tensor::Vector(outputs.routed.tensor.data, DType::kUint8, c.rows);
    }
    return RouteOnHost(c.config, tensors, isa);
  };
  const Outputs expected(c);
  const RoutingCode code = route(expected, Isa::kPortable);
  EXPECT_TRUE(code.ok()) << Describe(c) << ": " << code.ToString();
  bool good = code.ok();
  for (const Isa isa : SupportedIsas()) {
    if (isa == Isa::kPortable) continue;
    const Outputs got(c);
    EXPECT_TRUE(route(got, isa).ok());
    const bool same[] = {Same(got.ids, expected.ids), Same(got.weights, expected.weights),
                         Same(got.replay, expected.replay), Same(got.routed, expected.routed)};
    const bool all = same[0] && same[1] && same[2] && same[3];
    EXPECT_TRUE(all) << Describe(c) << " on " << IsaName(isa) << ": ids " << same[0] << ", weights "
                     << same[1] << ", replay_out " << same[2] << ", routed " << same[3];
    good = good && all;
  }
  return good;
}

Case RandomCase(RoutingMethod method, std::int32_t experts, DType logits_type,
                std::mt19937_64& random) {
  Case c;
  c.config.method = method;
  c.experts = experts;
  c.logits_type = logits_type;
  c.weights_type = random() % 2 == 0 ? DType::kFloat32 : DType::kBfloat16;
  c.rows = Between(1, 4, random);
  c.more_rows = Between(0, 1, random);
  c.records = random() % 2 == 0;
  c.replays = random() % 3 == 0;
  for (auto& gap : c.gaps)
    gap = random() % 2 == 0 ? 0 : Between(1, 9, random);
  const std::int32_t most = method == RoutingMethod::kLlama4 ? 1 : std::min(experts, kMaxTopK);
  c.config.top_k = Between(1, most, random);
  if (random() % 3 == 0) c.config.top_k = std::min(most, 8);
  const bool deepseek = method == RoutingMethod::kDeepSeekV3;
  if (deepseek || method == RoutingMethod::kMiniMax2) {
    c.bias = random() % 4 != 0;
    c.config.scale = std::array{1.0f, 2.5f, -0.3f, 1e30f}[random() % 4];
  }
  if (deepseek && random() % 4 != 0) {
    std::vector<std::int32_t> divisors;
    for (std::int32_t g = 1; g <= kMaxGroups; ++g) {
      if (experts % g == 0) divisors.push_back(g);
    }
    const std::int32_t groups = divisors[random() % divisors.size()];
    const std::int32_t size = experts / groups;
    c.config.num_groups = groups;
    c.config.topk_groups = Between((c.config.top_k + size - 1) / size, groups, random);
  }
  if (method == RoutingMethod::kSigmoidRenorm) c.config.normalize = random() % 2 == 0;
  return c;
}

constexpr DType kLogitTypes[] = {DType::kFloat32, DType::kBfloat16, DType::kFloat16};

// ---- tests

// Every method and type of logits with every E up to 260, and those about the next multiples.
TEST(RoutingIsa, EqualsThePlainFormForEveryNumberOfExperts) {
  std::mt19937_64 random(Seed());
  std::vector<std::int32_t> all(260);
  std::iota(all.begin(), all.end(), 1);
  for (const std::int32_t experts : {288, 319, 320, 383, 384, 385,  511,  512,  513,  639,
                                     640, 767, 768, 895, 960, 1007, 1008, 1009, 1023, 1024}) {
    all.push_back(experts);
  }
  for (const std::int32_t experts : all) {
    for (std::int32_t method = 0; method < kNumRoutingMethods; ++method) {
      for (const DType type : kLogitTypes) {
        const Case c = RandomCase(static_cast<RoutingMethod>(method), experts, type, random);
        ASSERT_TRUE(Check(c, random));
      }
    }
  }
}

// The sizes that models have, more often.
TEST(RoutingIsa, EqualsThePlainFormForTheSizesOfModels) {
  std::mt19937_64 random(Seed());
  const std::int32_t sizes[] = {64, 128, 160, 256, 384, 512, 1024};
  for (int i = 0; i < 3000; ++i) {
    const auto method = static_cast<RoutingMethod>(random() % kNumRoutingMethods);
    const Case c =
        RandomCase(method, sizes[random() % std::size(sizes)], kLogitTypes[random() % 3], random);
    ASSERT_TRUE(Check(c, random)) << "case " << i;
  }
}

// Every group size that divides 96 and 1024, of one expert to all, and every number of kept groups.
TEST(RoutingIsa, EqualsThePlainFormForGroupsOfAnySize) {
  std::mt19937_64 random(Seed());
  for (const std::int32_t experts : {32, 60, 96, 256, 1024}) {
    for (std::int32_t groups = 1; groups <= kMaxGroups; ++groups) {
      if (experts % groups != 0) continue;
      for (std::int32_t kept = 1; kept <= groups; ++kept) {
        Case c = RandomCase(RoutingMethod::kDeepSeekV3, experts, kLogitTypes[random() % 3], random);
        c.config.num_groups = groups;
        c.config.topk_groups = kept;
        c.config.top_k = std::min(c.config.top_k, kept * (experts / groups));
        ASSERT_TRUE(Check(c, random));
      }
    }
  }
}

// Rows of 32 logits, all of which are selected, so that every weight is seen.
void CheckWeights(RoutingMethod method, DType type, const void* logits, std::int64_t num_logits) {
  constexpr std::int32_t kExperts = 32;
  RoutingConfig config;
  config.method = method;
  config.top_k = method == RoutingMethod::kLlama4 ? 1 : kExperts;
  const std::int64_t rows = num_logits / kExperts;
  const auto route = [&](Isa isa) {
    std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>> out;
    out.first.resize(static_cast<std::size_t>(num_logits));
    out.second.resize(static_cast<std::size_t>(num_logits));
    RoutingTensors tensors;
    tensors.logits = Tensor::Matrix(logits, type, rows, kExperts);
    tensors.topk_ids = Tensor::Matrix(out.first.data(), DType::kInt32, rows, config.top_k);
    tensors.topk_weights = Tensor::Matrix(out.second.data(), DType::kFloat32, rows, config.top_k);
    EXPECT_TRUE(RouteOnHost(config, tensors, isa).ok());
    return out;
  };
  const auto expected = route(Isa::kPortable);
  for (const Isa isa : SupportedIsas()) {
    EXPECT_TRUE(route(isa) == expected)
        << RoutingMethodName(method) << " of " << DTypeName(type) << " on " << IsaName(isa);
  }
}

// Every pattern of 16 bits as a logit: conversions and functions.
TEST(RoutingIsa, EqualsThePlainFormForEveryLogitOf16Bits) {
  std::vector<std::uint16_t> logits(65536);
  std::iota(logits.begin(), logits.end(), std::uint16_t{0});
  for (std::int32_t method = 0; method < kNumRoutingMethods; ++method) {
    for (const DType type : {DType::kBfloat16, DType::kFloat16}) {
      CheckWeights(static_cast<RoutingMethod>(method), type, logits.data(), 65536);
    }
  }
}

// Enough logits that a coefficient of the exponential that is off by one bit is seen.
TEST(RoutingIsa, EqualsThePlainFormForAMillionLogits) {
  std::mt19937_64 random(Seed());
  std::vector<float> logits(std::size_t{1} << 20);
  for (const float width : {1.0f, 30.0f}) {
    std::uniform_real_distribution<float> uniform(-width, width);
    for (auto& x : logits)
      x = uniform(random);
    for (const RoutingMethod method :
         {RoutingMethod::kSigmoid, RoutingMethod::kRenormalize, RoutingMethod::kDefault}) {
      CheckWeights(method, DType::kFloat32, logits.data(), std::int64_t{1} << 20);
    }
  }
}

// Where it is not an instruction. Random bits, and sums a hair from halfway between two floats,
// subnormal ones too: rounded to double first they would be halfway.
TEST(RoutingIsa, FmaIsRoundedOnce) {
  std::mt19937_64 random(Seed());
  for (int i = 0; i < 1000000; ++i) {
    float a = routing::FromBits(static_cast<std::uint32_t>(random()));
    float b = routing::FromBits(static_cast<std::uint32_t>(random()));
    const float c = routing::FromBits(static_cast<std::uint32_t>(random()));
    if (i % 2 != 0) {
      // (1 + n u) (1 - n u) is 1 less a square of u; times half of the last bit of c.
      const float n_u = static_cast<float>(Between(1, 1000, random)) * 0x1p-23f;
      const std::int32_t exponent = std::max<std::int32_t>(routing::Bits(c) >> 23 & 0xff, 1);
      const std::int32_t half_bit = exponent - 127 - 24;
      a = std::ldexp(1.0f + n_u, half_bit / 2);
      b = std::ldexp(random() % 2 == 0 ? 1.0f - n_u : n_u - 1.0f, half_bit - half_bit / 2);
    }
    const float expected = std::fma(a, b, c), got = routing::Fma(a, b, c);
    if (expected != expected && got != got) continue;
    ASSERT_EQ(routing::Bits(expected), routing::Bits(got)) << a << " * " << b << " + " << c;
  }
}

TEST(RoutingIsa, TheDefaultIsTheBest) {
  // A call without an instruction set is the one with the last of them, and does what it does.
  std::vector<float> logits(256);
  std::iota(logits.begin(), logits.end(), -100.0f);
  std::int32_t ids[8];
  float weights[8];
  RoutingConfig config;
  config.top_k = 8;
  RoutingTensors tensors;
  tensors.logits = Tensor::Matrix(logits.data(), DType::kFloat32, 1, 256);
  tensors.topk_ids = Tensor::Matrix(ids, DType::kInt32, 1, 8);
  tensors.topk_weights = Tensor::Matrix(weights, DType::kFloat32, 1, 8);
  ASSERT_TRUE(RouteOnHost(config, tensors).ok());
  for (std::int32_t k = 0; k < 8; ++k)
    EXPECT_EQ(ids[k], 255 - k);
}

}  // namespace
}  // namespace waymark::kernels
