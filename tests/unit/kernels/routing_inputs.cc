#include "tests/unit/kernels/routing_inputs.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

namespace waymark::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// 1024 numbers from 0.125 to 32, ascending; exact in every type.
float Distinct(std::int32_t i) {
  return std::bit_cast<float>((std::uint32_t{0x3e00} + static_cast<std::uint32_t>(i)) << 16);
}

float Sign(std::mt19937_64& random) {
  return random() % 2 == 0 ? 1.0f : -1.0f;
}

float SomeNaN(std::mt19937_64& random) {
  return std::copysign(std::numeric_limits<float>::quiet_NaN(), Sign(random));
}

template <class T>
void Shuffle(std::vector<T>& what, std::mt19937_64& random) {
  for (std::size_t i = what.size(); i > 1; --i)
    std::swap(what[i - 1], what[random() % i]);
}

}  // namespace

const char* FamilyName(Family family) {
  constexpr const char* kNames[] = {"TieFree",     "Quantised", "Equal",   "Negative", "Infinities",
                                    "AllPlus",     "AllMinus",  "SomeNaN", "AllNaN",   "Subnormal",
                                    "SignedZeros", "FewFinite", "Normal",  "Wide",     "HighBest"};
  static_assert(std::size(kNames) == std::size(kFamilies));
  return kNames[static_cast<std::size_t>(family)];
}

void AppendRow(Family family, std::int32_t experts, std::mt19937_64& random,
               std::vector<float>& logits) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  Shuffle(order, random);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::uniform_real_distribution<float> wide(-200.0f, 200.0f);
  const float common = normal(random);
  const auto finite = static_cast<std::int32_t>(1 + random() % 7);
  for (std::int32_t e = 0; e < experts; ++e) {
    const std::int32_t rank = order[static_cast<std::size_t>(e)];
    float x = 0;
    switch (family) {
      case Family::kTieFree:
        x = Distinct(rank) * Sign(random);
        break;
      case Family::kQuantised:
        x = 0.5f * static_cast<float>(random() % 5) - 1.0f;
        break;
      case Family::kEqual:
        x = common;
        break;
      case Family::kNegative:
        x = -Distinct(rank);
        break;
      case Family::kInfinities:
        x = rank % 3 == 0 ? Distinct(rank) * Sign(random) : rank % 3 == 1 ? kInf : -kInf;
        break;
      case Family::kAllPlus:
        x = kInf;
        break;
      case Family::kAllMinus:
        x = -kInf;
        break;
      case Family::kSomeNaN:
        x = random() % 2 == 0 ? SomeNaN(random) : Distinct(rank) * Sign(random);
        break;
      case Family::kAllNaN:
        x = SomeNaN(random);
        break;
      case Family::kSubnormal:
        x = Sign(random) * (random() % 2 == 0 ? 0x1p-24f : 0x1p-149f) *
            static_cast<float>(random() % 1024);
        break;
      case Family::kSignedZeros:
        x = Sign(random) * (random() % 8 == 0 ? 0.25f : 0.0f);
        break;
      case Family::kFewFinite:
        x = rank < finite       ? Distinct(rank) * Sign(random)
            : random() % 2 == 0 ? -kInf
                                : SomeNaN(random);
        break;
      case Family::kNormal:
        x = normal(random);
        break;
      case Family::kWide:
        x = wide(random);
        break;
      case Family::kHighBest:
        x = Distinct(e);
        break;
    }
    logits.push_back(x);
  }
}

std::vector<float> MakeBias(BiasFamily family, std::int32_t experts, std::mt19937_64& random) {
  std::vector<float> bias;
  if (family == BiasFamily::kNone) return bias;
  std::uniform_real_distribution<float> small(-0.1f, 0.1f);
  const float offset = static_cast<float>(7 + random() % 6);
  for (std::int32_t e = 0; e < experts; ++e) {
    float b = 0;
    switch (family) {
      case BiasFamily::kNone:
        break;
      case BiasFamily::kSmall:
        b = small(random);
        break;
      case BiasFamily::kOffset:  // a bfloat16's ulp is 2^-5 at 7 and 2^-4 from 8 on
        b = offset + 0x1p-14f * static_cast<float>(random() % 512);
        break;
      case BiasFamily::kQuantised:
        b = 0.25f * static_cast<float>(random() % 3);
        break;
      case BiasFamily::kBroken: {
        const float choices[] = {SomeNaN(random), -kInf, kInf, small(random), small(random)};
        b = choices[random() % std::size(choices)];
        break;
      }
    }
    bias.push_back(b);
  }
  return bias;
}

void AppendReplayRow(bool missing, std::int32_t experts, std::int32_t top_k,
                     std::mt19937_64& random, std::vector<std::int16_t>& replay) {
  std::vector<std::int16_t> ids(static_cast<std::size_t>(experts));
  std::iota(ids.begin(), ids.end(), std::int16_t{0});
  Shuffle(ids, random);
  ids.resize(static_cast<std::size_t>(top_k));
  if (missing) {
    std::int16_t& broken = ids[random() % ids.size()];
    const auto e = static_cast<std::int16_t>(experts);
    const std::int16_t other = ids[random() % ids.size()];
    const std::int16_t choices[] = {
        -1,    e,      static_cast<std::int16_t>(e + 1),
        32767, -32768, &broken == &ids[0] || other == broken ? std::int16_t{-1} : other};
    broken = choices[random() % std::size(choices)];
    if (random() % 4 == 0) std::fill(ids.begin(), ids.end(), std::int16_t{-1});
  }
  replay.insert(replay.end(), ids.begin(), ids.end());
}

Problem MakeProblem(RoutingMethod method, std::int32_t experts, std::int32_t top_k,
                    const std::vector<Family>& families, std::mt19937_64& random) {
  Problem problem;
  problem.config.method = method;
  problem.config.top_k = top_k;
  problem.rows = static_cast<std::int64_t>(families.size());
  problem.experts = experts;
  for (const Family family : families)
    AppendRow(family, experts, random, problem.logits);
  return problem;
}

}  // namespace waymark::kernels
