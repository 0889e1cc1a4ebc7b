// Which parameters a set code may have, and the tables that follow from them.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "absl/status/status.h"
#include "blockstore/invalid.h"
#include "blockstore/wire/set_code_tile.h"

namespace waymark {
namespace {

using internal::SetCodePlan;

constexpr std::uint64_t kTooMany = std::numeric_limits<std::uint64_t>::max();

// The binomial coefficient C(n, k), or kTooMany if it is 2^64 - 1 or more.
std::uint64_t Choose(std::uint64_t n, std::uint64_t k) {
  if (k > n) return 0;
  unsigned __int128 result = 1;
  for (std::uint64_t i = 1; i <= std::min(k, n - k); ++i) {
    result = result * (n - std::min(k, n - k) + i) / i;
    if (result >= kTooMany) return kTooMany;
  }
  return static_cast<std::uint64_t>(result);
}

// Y of docs/internals/format-set-code.md: the high bits are a set of K points in [0, Y).
std::uint32_t Points(const SetCodeParams& params) {
  const auto experts = static_cast<std::uint32_t>(params.num_experts);
  if (params.low_bits == 0) return experts;
  return static_cast<std::uint32_t>(params.top_k) - 1 + ((experts - 1) >> params.low_bits) + 1;
}

// Bits of a code, or 0 if its rank has more than 64 bits.
std::uint32_t Bits(const SetCodeParams& params) {
  const auto low = static_cast<std::uint32_t>(params.top_k * params.low_bits);
  const std::uint32_t points = Points(params);
  if (params.high_bits == HighBits::kUnary) return low + points;
  const std::uint64_t sets = Choose(points, static_cast<std::uint64_t>(params.top_k));
  return sets == kTooMany ? 0 : low + static_cast<std::uint32_t>(std::bit_width(sets - 1));
}

// Fills the tables of the vectors, if they can do these parameters.
void MakeVectorTables(SetCodePlan& plan) {
  const std::uint32_t heights = plan.points - plan.top_k + 1;
  if (plan.params.high_bits == HighBits::kUnary) {
    plan.vectors = plan.points <= 64;
    return;
  }
  constexpr auto kAbove = std::numeric_limits<std::int32_t>::max();
  plan.vectors = heights <= internal::kMaxHeights && plan.sets <= std::uint64_t{kAbove};
  if (!plan.vectors) return;
  plan.levels = heights <= 16 ? 4 : 5;
  for (std::uint32_t k = 0; k < plan.top_k; ++k) {
    auto& of_heights = plan.heights[k];
    for (std::uint32_t height = 0; height < of_heights.size(); ++height) {
      of_heights[height] =
          height < heights
              ? static_cast<std::int32_t>(plan.binomials[std::size_t{k} * plan.points + height + k])
              : kAbove;
    }
    for (std::uint32_t level = 0; level < plan.levels; ++level) {
      for (std::uint32_t i = 0; i < 1u << level; ++i) {
        plan.nodes[k][(1u << level) + i] = of_heights[(2 * i + 1) << (plan.levels - 1 - level)] - 1;
      }
    }
  }
}

}  // namespace

std::shared_ptr<const internal::SetCodePlan> internal::MakeSetCodePlan(
    const SetCodeParams& params) {
  auto plan = std::make_shared<SetCodePlan>();
  plan->params = params;
  plan->num_experts = static_cast<std::uint32_t>(params.num_experts);
  plan->top_k = static_cast<std::uint32_t>(params.top_k);
  plan->low_bits = static_cast<std::uint32_t>(params.low_bits);
  plan->id_bytes = params.num_experts <= 256 ? 1 : 2;
  plan->ids_in_word = 4 / plan->id_bytes;
  plan->id_words = (plan->top_k + plan->ids_in_word - 1) / plan->ids_in_word;
  plan->points = Points(params);
  plan->high_bits_begin = plan->top_k * plan->low_bits;
  plan->bits = Bits(params);
  plan->code_words = (plan->bits + 31) / 32;
  if (params.high_bits == HighBits::kRanked) {
    plan->sets = Choose(plan->points, plan->top_k);
    plan->binomials.resize(std::size_t{plan->top_k} * plan->points);
    // Row by row of Pascal's triangle. A number that does not fit into 64 bits is above every rank.
    for (std::uint32_t k = 0; k < plan->top_k; ++k) {
      std::uint64_t* const of_k = &plan->binomials[std::size_t{k} * plan->points];
      for (std::uint32_t y = 1; y < plan->points; ++y) {
        const std::uint64_t less = k == 0 ? 1 : (of_k - plan->points)[y - 1];
        if (__builtin_add_overflow(of_k[y - 1], less, &of_k[y])) of_k[y] = kTooMany;
      }
    }
  }
  plan->network = internal::SortingNetwork(plan->top_k);
  MakeVectorTables(*plan);
  return plan;
}

SetCodeParams SetCodeParams::Default(std::int32_t num_experts, std::int32_t top_k) {
  SetCodeParams params{num_experts, top_k, 0, HighBits::kRanked};
  if (num_experts < 1 || num_experts > 65535 || top_k < 1 || top_k > 64 || top_k > num_experts) {
    return params;
  }
  if (top_k <= 10) {
    const std::int32_t heights = num_experts <= 256 ? 16 : 32;
    while ((num_experts - 1) >> params.low_bits >= heights)
      ++params.low_bits;
    return params;
  }
  params.high_bits = HighBits::kUnary;
  SetCodeParams best = params;
  for (params.low_bits = 1; params.low_bits <= 16; ++params.low_bits) {
    if (Bits(params) <= Bits(best)) best = params;
  }
  return best;
}

absl::Status SetCodeParams::Validate() const {
  const auto out_of_bounds = [](const char* field, std::int32_t low, std::int32_t high,
                                std::int32_t value) {
    return Invalid("set code: ", field, " must be in [", low, ", ", high, "]; it is ", value);
  };
  if (num_experts < 1 || num_experts > 65535) {
    return out_of_bounds("num_experts", 1, 65535, num_experts);
  }
  if (top_k < 1 || top_k > std::min(64, num_experts)) {
    return out_of_bounds("top_k", 1, std::min(64, num_experts), top_k);
  }
  if (low_bits < 0 || low_bits > 16) return out_of_bounds("low_bits", 0, 16, low_bits);
  if (high_bits != HighBits::kRanked && high_bits != HighBits::kUnary) {
    return out_of_bounds("high_bits", 0, 1, static_cast<std::int32_t>(high_bits));
  }
  const std::uint32_t bits = Bits(*this);
  if (bits == 0 && high_bits == HighBits::kRanked &&
      Choose(Points(*this), static_cast<std::uint64_t>(top_k)) == kTooMany) {
    return Invalid("set code: a rank must have at most 64 bits; E ", num_experts, ", K ", top_k,
                   ", l ", low_bits, " need more: take a greater low_bits, or unary high bits");
  }
  if (bits > internal::kMaxCodeBits) {
    return Invalid("set code: a code must have at most ", internal::kMaxCodeBits, " bits; E ",
                   num_experts, ", K ", top_k, ", l ", low_bits, " make ", bits);
  }
  return absl::OkStatus();
}

}  // namespace waymark
