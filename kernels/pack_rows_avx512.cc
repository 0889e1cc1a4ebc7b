// PackRows for x86-64 with AVX-512: the one thing in which it is a third faster than AVX2. Compiled
// for the baseline processor: only the function marked so uses more, and it runs only where
// SupportedIsas() has found the instructions.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#include "kernels/pack_rows_ops.h"

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's own headers make "undefined" vectors by initialising a variable with itself.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WAYMARK_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))

namespace waymark::kernels::internal {
namespace {

// Layers of 8 ints to bytes, of rows that follow each other: two of them are one cache line. Two
// layers of four rows at a time, so that each row gets 16 bytes in one store; the last layer of an
// odd number is there twice, and ends in the slack. Rows behind the last one are staged, too: there
// is room for whole groups of four. Returns whether all ids are in range.
WAYMARK_AVX512 bool NarrowInts8(const PackPlan& plan, const IdsView& ids, const Tile& tile) {
  const std::int32_t layers = plan.shape.num_layers;
  const std::size_t stride = tile.staged_stride;
  // Packing works within 16 bytes: halves of rows 0 and 2 of both layers, then of rows 1 and 3.
  const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15);
  __m512i most = _mm512_setzero_si512();
  for (std::int32_t layer = 0; layer < layers; layer += 2) {
    const std::uint8_t* first = tile.input + layer * ids.layer_stride;
    const std::uint8_t* second = layer + 1 < layers ? first + ids.layer_stride : first;
    std::uint8_t* to = tile.staged + layer * 8;
    for (std::size_t row = 0; row < tile.rows; row += 4) {
      const std::uint32_t lanes = (1u << (4 * std::min<std::size_t>(4, tile.rows - row))) - 1;
      const auto low = static_cast<__mmask8>(lanes);
      const auto high = static_cast<__mmask8>(lanes >> 8);
      const __m512i a = _mm512_maskz_loadu_epi64(low, first);
      const __m512i b = _mm512_maskz_loadu_epi64(low, second);
      const __m512i c = _mm512_maskz_loadu_epi64(high, first + 64);
      const __m512i d = _mm512_maskz_loadu_epi64(high, second + 64);
      most =
          _mm512_max_epu32(most, _mm512_max_epu32(_mm512_max_epu32(a, b), _mm512_max_epu32(c, d)));
      const __m512i packed = _mm512_permutexvar_epi32(
          order, _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d)));
      const auto store = [to](std::size_t at, __m128i of_row) WAYMARK_AVX512 {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at), of_row);
      };
      store(0, _mm512_castsi512_si128(packed));
      store(stride, _mm512_extracti32x4_epi32(packed, 1));
      store(2 * stride, _mm512_extracti32x4_epi32(packed, 2));
      store(3 * stride, _mm512_extracti32x4_epi32(packed, 3));
      first += 128;
      second += 128;
      to += 4 * stride;
    }
  }
  return _mm512_cmpge_epu32_mask(most, _mm512_set1_epi32(static_cast<int>(plan.limit))) == 0;
}

void Narrow(const PackPlan& plan, const IdsView& ids, Tile& tile) {
  const bool ints_8 = plan.shape.id_bytes() == 1 && plan.shape.top_k == 8 &&
                      IdKindBytes(ids.kind) == 4 && ids.k_stride == 4 && ids.row_stride == 32;
  if (!ints_8 || !tile.slack || (tile.rows + 3) / 4 * 4 > tile.room) {
    return Avx2Ops().narrow(plan, ids, tile);
  }
  tile.in_range.fill(true);
  // Which rows are not right: seldom asked, and slow.
  if (!NarrowInts8(plan, ids, tile)) NarrowTileByKind(plan, ids, tile);
}

bool CopyCheck(const PackPlan& plan, const std::uint8_t* input, std::uint8_t* destination) {
  return Avx2Ops().copy_check(plan, input, destination);
}

}  // namespace

const PackOps& Avx512Ops() {
  static constexpr PackOps kOps{&CopyCheck, &Narrow};
  return kOps;
}

}  // namespace waymark::kernels::internal

#endif  // defined(__x86_64__)
