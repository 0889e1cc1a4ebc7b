// SetCode one cell at a time, for all parameters that Validate accepts and for any processor.
// set_code_avx2.cc must give the same bits; SetCode uses this one if vectors cannot do the
// parameters.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "blockstore/wire/set_code_tile.h"

namespace waymark::internal {
namespace {

std::uint64_t EncodeScalar(const SetCodePlan& plan, const std::uint32_t* id_words,
                           std::uint32_t* code_words) {
  std::uint64_t bad = 0;
  const std::uint32_t id_mask = plan.id_bytes == 1 ? 0xff : 0xffff;
  const std::uint32_t low_mask = (std::uint32_t{1} << plan.low_bits) - 1;
  for (std::size_t row = 0; row < kTileRows; ++row) {
    std::array<std::uint32_t, kMaxTopK> ids;
    for (std::uint32_t k = 0; k < plan.top_k; ++k) {
      const std::uint32_t word = id_words[k / plan.ids_in_word * kTileRows + row];
      const std::uint32_t id = word >> k % plan.ids_in_word * (8 * plan.id_bytes) & id_mask;
      std::uint32_t at = k;
      for (; at > 0 && ids[at - 1] > id; --at)
        ids[at] = ids[at - 1];
      ids[at] = id;
    }
    bool good = ids[plan.top_k - 1] < plan.num_experts;
    for (std::uint32_t k = 1; k < plan.top_k; ++k)
      good &= ids[k - 1] < ids[k];
    for (std::uint32_t word = 0; word < plan.code_words; ++word)
      code_words[word * kTileRows + row] = 0;
    if (!good) {
      bad |= std::uint64_t{1} << row;
      continue;
    }
    const auto put = [&](std::uint64_t value, std::uint32_t at) {
      for (; value != 0; at += 32 - at % 32) {
        code_words[at / 32 * kTileRows + row] |= static_cast<std::uint32_t>(value) << at % 32;
        value >>= 32 - at % 32;
      }
    };
    std::uint64_t rank = 0;
    for (std::uint32_t k = 0; k < plan.top_k; ++k) {
      put(ids[k] & low_mask, k * plan.low_bits);
      const std::uint32_t point = (ids[k] >> plan.low_bits) + (plan.low_bits != 0 ? k : 0);
      if (plan.params.high_bits == HighBits::kUnary) {
        put(1, plan.high_bits_begin + point);
      } else {
        rank += plan.binomials[std::size_t{k} * plan.points + point];
      }
    }
    put(rank, plan.high_bits_begin);
  }
  return bad;
}

std::uint64_t DecodeScalar(const SetCodePlan& plan, const std::uint32_t* code_words,
                           std::uint32_t* id_words) {
  std::uint64_t bad = 0;
  const std::uint32_t low_mask = (std::uint32_t{1} << plan.low_bits) - 1;
  for (std::size_t row = 0; row < kTileRows; ++row) {
    const auto word_at = [&](std::uint32_t word) -> std::uint64_t {
      return word < plan.code_words ? code_words[word * kTileRows + row] : 0;
    };
    // The 32 bits of the code from bit `at` on.
    const auto get = [&](std::uint32_t at) {
      return static_cast<std::uint32_t>((word_at(at / 32) | word_at(at / 32 + 1) << 32) >> at % 32);
    };
    std::array<std::uint32_t, kMaxTopK> points{};
    bool good = true;
    if (plan.params.high_bits == HighBits::kUnary) {
      std::uint32_t found = 0;
      for (std::uint32_t point = 0; point < plan.points; point += 32) {
        std::uint32_t bits = get(plan.high_bits_begin + point);
        for (; bits != 0 && found < plan.top_k; bits &= bits - 1)
          points[found++] = point + static_cast<std::uint32_t>(std::countr_zero(bits));
        good &= bits == 0;
      }
      good &= found == plan.top_k;
    } else {
      std::uint64_t rank = get(plan.high_bits_begin) | std::uint64_t{get(plan.high_bits_begin + 32)}
                                                           << 32;
      good = rank < plan.sets;
      for (std::uint32_t k = plan.top_k; k-- > 0 && good;) {
        const std::uint64_t* const first = &plan.binomials[std::size_t{k} * plan.points];
        const std::uint64_t* const above = std::upper_bound(first, first + plan.points, rank);
        points[k] = static_cast<std::uint32_t>(above - first - 1);
        rank -= above[-1];
      }
    }
    for (std::uint32_t word = 0; word < plan.id_words; ++word)
      id_words[word * kTileRows + row] = 0;
    std::uint32_t previous = 0;
    for (std::uint32_t k = 0; k < plan.top_k && good; ++k) {
      const std::uint32_t high = points[k] - (plan.low_bits != 0 ? k : 0);
      const std::uint32_t id = high << plan.low_bits | (get(k * plan.low_bits) & low_mask);
      good &= (k == 0 || previous < id) && id < plan.num_experts;
      previous = id;
      id_words[k / plan.ids_in_word * kTileRows + row] |=
          id << k % plan.ids_in_word * (8 * plan.id_bytes);
    }
    if (!good) bad |= std::uint64_t{1} << row;
  }
  return bad;
}
}  // namespace

const SetCodeBackend kSetCodeScalar = {"scalar", EncodeScalar, DecodeScalar};

}  // namespace waymark::internal
