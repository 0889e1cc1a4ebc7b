// PackRows for x86-64 with AVX-512. Compiled for the baseline processor: only the functions marked
// so use more, and they run only where SupportedIsas() has found the instructions.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/pack_rows_ops.h"

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's own headers make "undefined" vectors by initialising a variable with itself.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WAYMARK_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define WAYMARK_AVX512_INLINE \
  __attribute__((target("avx512f,avx512bw,avx512vl"), always_inline)) inline

namespace waymark::kernels::internal {
namespace {

// The first n lanes. n <= 64.
std::uint64_t Lanes(std::size_t n) {
  return n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
}

// The lanes whose id has another of its layer `apart` lanes on. Layers do not overlap, so the
// product sets the first K - apart lanes of each.
WAYMARK_AVX512_INLINE std::uint64_t PairsApart(const PackPlan& plan, int apart) {
  return plan.layer_starts * ((std::uint64_t{1} << (plan.shape.top_k - apart)) - 1);
}

// Any K: `chunk` ids, which are whole layers, against the ids 1 ... K - 1 further on.
WAYMARK_AVX512 bool CopyCheckBytesAvx512(const PackPlan& plan, const std::uint8_t* input,
                                         std::uint8_t* destination) {
  const __m512i limit = _mm512_set1_epi8(static_cast<char>(plan.shape.num_experts));
  const int top_k = plan.shape.top_k;
  __mmask64 bad = 0;
  for (std::size_t at = 0; at < plan.row_ids; at += plan.chunk) {
    const __mmask64 lanes = Lanes(std::min<std::size_t>(plan.chunk, plan.row_ids - at));
    const __m512i ids = _mm512_maskz_loadu_epi8(lanes, input + at);
    for (int apart = 1; apart < top_k; ++apart) {
      const __mmask64 pairs = PairsApart(plan, apart) & lanes;
      const __m512i other = _mm512_maskz_loadu_epi8(pairs, input + at + apart);
      bad |= _mm512_mask_cmpeq_epi8_mask(pairs, ids, other);
    }
    if (plan.copy_checks_range) bad |= _mm512_mask_cmpge_epu8_mask(lanes, ids, limit);
    _mm512_mask_storeu_epi8(destination + at, lanes, ids);
  }
  return bad == 0;
}

WAYMARK_AVX512 bool CopyCheckShortsAvx512(const PackPlan& plan, const std::uint8_t* input,
                                          std::uint8_t* destination) {
  const __m512i limit = _mm512_set1_epi16(static_cast<std::int16_t>(plan.shape.num_experts));
  const int top_k = plan.shape.top_k;
  __mmask32 bad = 0;
  for (std::size_t at = 0; at < plan.row_ids; at += plan.chunk) {
    const auto lanes =
        static_cast<__mmask32>(Lanes(std::min<std::size_t>(plan.chunk, plan.row_ids - at)));
    const __m512i ids = _mm512_maskz_loadu_epi16(lanes, input + at * 2);
    for (int apart = 1; apart < top_k; ++apart) {
      const auto pairs = static_cast<__mmask32>(PairsApart(plan, apart)) & lanes;
      const __m512i other =
          _mm512_maskz_loadu_epi16(pairs, input + (at + static_cast<std::size_t>(apart)) * 2);
      bad |= _mm512_mask_cmpeq_epi16_mask(pairs, ids, other);
    }
    if (plan.copy_checks_range) bad |= _mm512_mask_cmpge_epu16_mask(lanes, ids, limit);
    _mm512_mask_storeu_epi16(destination + at * 2, lanes, ids);
  }
  return bad == 0;
}

bool CopyCheckAvx512(const PackPlan& plan, const std::uint8_t* input, std::uint8_t* destination) {
  const bool bytes = plan.shape.id_bytes() == 1;
  // In vectors of 32 bytes: rows are seldom aligned to cache lines, and a store of 64 bytes to a
  // line that is not in the cache waits for two.
  if (bytes && plan.shape.top_k == 8) return Avx2Ops().copy_check(plan, input, destination);
  if (plan.chunk == 0) return PortableOps().copy_check(plan, input, destination);
  return bytes ? CopyCheckBytesAvx512(plan, input, destination)
               : CopyCheckShortsAvx512(plan, input, destination);
}

// As NarrowShorts8Avx2 (pack_rows_avx2.cc).
WAYMARK_AVX512 void NarrowShorts8Avx512(const PackPlan& plan, const IdsView& ids, Tile& tile) {
  const __m512i limit = _mm512_set1_epi16(static_cast<std::int16_t>(plan.limit));
  const std::int32_t layers = plan.shape.num_layers;
  std::size_t row = 0;
  while (row < tile.rows) {
    const std::uint8_t* input = tile.input[row];
    const bool four = row + 4 <= tile.rows && tile.input[row + 1] == input + 16 &&
                      tile.input[row + 2] == input + 32 && tile.input[row + 3] == input + 48;
    if (four) {
      __m512i most = _mm512_setzero_si512();
      std::uint8_t* const staged[4] = {tile.staged[row], tile.staged[row + 1], tile.staged[row + 2],
                                       tile.staged[row + 3]};
      for (std::int32_t layer = 0; layer < layers; layer += 2) {
        const std::uint8_t* const first = input + layer * ids.layer_stride;
        const std::uint8_t* const second = layer + 1 < layers ? first + ids.layer_stride : first;
        const __m512i first_wide = _mm512_loadu_si512(first);
        const __m512i second_wide = _mm512_loadu_si512(second);
        most = _mm512_max_epu16(most, _mm512_max_epu16(first_wide, second_wide));
        // Each quarter of the vector is one row: of the first layer, then of the second.
        const __m512i rows = _mm512_packus_epi16(first_wide, second_wide);
        const std::ptrdiff_t to = layer * 8;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(staged[0] + to), _mm512_castsi512_si128(rows));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(staged[1] + to),
                         _mm512_extracti32x4_epi32(rows, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(staged[2] + to),
                         _mm512_extracti32x4_epi32(rows, 2));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(staged[3] + to),
                         _mm512_extracti32x4_epi32(rows, 3));
      }
      const __mmask32 out = _mm512_cmpge_epu16_mask(most, limit);
      for (std::size_t i = 0; i < 4; ++i) {
        tile.in_range[row + i] = ((out >> (8 * i)) & 0xff) == 0;
      }
      row += 4;
      continue;
    }
    __m128i most = _mm_setzero_si128();
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      const __m128i wide =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(input + layer * ids.layer_stride));
      most = _mm_max_epu16(most, wide);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(tile.staged[row] + layer * 8),
                       _mm_cvtepi16_epi8(wide));
    }
    tile.in_range[row] = _mm_cmpge_epu16_mask(most, _mm512_castsi512_si128(limit)) == 0;
    ++row;
  }
}

// K < 8 shorts per layer, as NarrowShortsAvx2.
WAYMARK_AVX512 void NarrowFewShortsAvx512(const PackPlan& plan, const IdsView& ids, Tile& tile) {
  const __m128i limit = _mm_set1_epi16(static_cast<std::int16_t>(plan.limit));
  const std::int32_t top_k = plan.shape.top_k;
  const auto lanes = static_cast<__mmask8>(Lanes(static_cast<std::size_t>(top_k)));
  for (std::size_t row = 0; row < tile.rows; row += 4) {
    const std::size_t rows = std::min<std::size_t>(4, tile.rows - row);
    __m128i most[4] = {};
    for (std::int32_t layer = 0; layer < plan.shape.num_layers; ++layer) {
      const std::ptrdiff_t offset = layer * ids.layer_stride;
      for (std::size_t i = 0; i < rows; ++i) {
        const __m128i wide = _mm_maskz_loadu_epi16(lanes, tile.input[row + i] + offset);
        most[i] = _mm_max_epu16(most[i], wide);
        _mm_storel_epi64(reinterpret_cast<__m128i*>(tile.staged[row + i] + layer * top_k),
                         _mm_packus_epi16(wide, wide));
      }
    }
    for (std::size_t i = 0; i < rows; ++i) {
      tile.in_range[row + i] = _mm_cmpge_epu16_mask(most[i], limit) == 0;
    }
  }
}

// One vector of input ids of `kInputBytes` to packed ids of `kPackedBytes`: masked on both sides.
template <int kInputBytes, int kPackedBytes>
struct Narrow512;

#define WAYMARK_NARROW512(input_bytes, packed_bytes, lane_count, load, compare, narrow_store) \
  template <>                                                                                 \
  struct Narrow512<input_bytes, packed_bytes> {                                               \
    static constexpr std::size_t kLanes = lane_count;                                         \
    static WAYMARK_AVX512_INLINE bool Run(std::uint64_t lanes, std::uint64_t limit,           \
                                          const std::uint8_t* input, std::uint8_t* packed) {  \
      const __m512i ids = load;                                                               \
      narrow_store;                                                                           \
      return compare == 0;                                                                    \
    }                                                                                         \
  };
WAYMARK_NARROW512(2, 1, 32, _mm512_maskz_loadu_epi16(static_cast<__mmask32>(lanes), input),
                  _mm512_mask_cmpge_epu16_mask(static_cast<__mmask32>(lanes), ids,
                                               _mm512_set1_epi16(static_cast<short>(limit))),
                  _mm256_mask_storeu_epi8(packed, static_cast<__mmask32>(lanes),
                                          _mm512_cvtepi16_epi8(ids)))
WAYMARK_NARROW512(2, 2, 32, _mm512_maskz_loadu_epi16(static_cast<__mmask32>(lanes), input),
                  _mm512_mask_cmpge_epu16_mask(static_cast<__mmask32>(lanes), ids,
                                               _mm512_set1_epi16(static_cast<short>(limit))),
                  _mm512_mask_storeu_epi16(packed, static_cast<__mmask32>(lanes), ids))
WAYMARK_NARROW512(4, 1, 16, _mm512_maskz_loadu_epi32(static_cast<__mmask16>(lanes), input),
                  _mm512_mask_cmpge_epu32_mask(static_cast<__mmask16>(lanes), ids,
                                               _mm512_set1_epi32(static_cast<int>(limit))),
                  _mm512_mask_cvtepi32_storeu_epi8(packed, static_cast<__mmask16>(lanes), ids))
WAYMARK_NARROW512(4, 2, 16, _mm512_maskz_loadu_epi32(static_cast<__mmask16>(lanes), input),
                  _mm512_mask_cmpge_epu32_mask(static_cast<__mmask16>(lanes), ids,
                                               _mm512_set1_epi32(static_cast<int>(limit))),
                  _mm512_mask_cvtepi32_storeu_epi16(packed, static_cast<__mmask16>(lanes), ids))
WAYMARK_NARROW512(8, 1, 8, _mm512_maskz_loadu_epi64(static_cast<__mmask8>(lanes), input),
                  _mm512_mask_cmpge_epu64_mask(static_cast<__mmask8>(lanes), ids,
                                               _mm512_set1_epi64(static_cast<long long>(limit))),
                  _mm512_mask_cvtepi64_storeu_epi8(packed, static_cast<__mmask8>(lanes), ids))
WAYMARK_NARROW512(8, 2, 8, _mm512_maskz_loadu_epi64(static_cast<__mmask8>(lanes), input),
                  _mm512_mask_cmpge_epu64_mask(static_cast<__mmask8>(lanes), ids,
                                               _mm512_set1_epi64(static_cast<long long>(limit))),
                  _mm512_mask_cvtepi64_storeu_epi16(packed, static_cast<__mmask8>(lanes), ids))
#undef WAYMARK_NARROW512

// Ids of a layer (or, where layers follow each other without a gap, of a row) are neighbours.
template <int kInputBytes, int kPackedBytes>
WAYMARK_AVX512 void NarrowRunsAvx512(const PackPlan& plan, const IdsView& ids, Tile& tile) {
  using Step = Narrow512<kInputBytes, kPackedBytes>;
  const std::size_t top_k = static_cast<std::size_t>(plan.shape.top_k);
  const bool one_run = ids.layer_stride == static_cast<std::ptrdiff_t>(top_k) * kInputBytes;
  const std::size_t run = one_run ? plan.row_ids : top_k;
  const std::int32_t runs = one_run ? 1 : plan.shape.num_layers;
  for (std::size_t row = 0; row < tile.rows; ++row)
    tile.in_range[row] = true;
  for (std::int32_t r = 0; r < runs; ++r) {
    for (std::size_t row = 0; row < tile.rows; ++row) {
      const std::uint8_t* input = tile.input[row] + r * ids.layer_stride;
      std::uint8_t* packed = tile.staged[row] + static_cast<std::size_t>(r) * run * kPackedBytes;
      bool good = true;
      for (std::size_t at = 0; at < run; at += Step::kLanes) {
        const std::uint64_t lanes = Lanes(std::min(Step::kLanes, run - at));
        good &= Step::Run(lanes, plan.limit, input + at * kInputBytes, packed + at * kPackedBytes);
      }
      tile.in_range[row] = tile.in_range[row] && good;
    }
  }
}

void NarrowAvx512(const PackPlan& plan, const IdsView& ids, Tile& tile) {
  const auto input_bytes = static_cast<std::ptrdiff_t>(IdKindBytes(ids.kind));
  if (ids.k_stride != input_bytes || input_bytes == 1) {
    return NarrowTileByKind(plan, ids, tile);
  }
  const bool bytes = plan.shape.id_bytes() == 1;
  switch (input_bytes) {
    case 2:
      if (bytes && plan.shape.top_k == 8 && tile.slack) {
        return NarrowShorts8Avx512(plan, ids, tile);
      }
      if (bytes && plan.shape.top_k < 8 && tile.slack) {
        return NarrowFewShortsAvx512(plan, ids, tile);
      }
      return bytes ? NarrowRunsAvx512<2, 1>(plan, ids, tile)
                   : NarrowRunsAvx512<2, 2>(plan, ids, tile);
    case 4:
      return bytes ? NarrowRunsAvx512<4, 1>(plan, ids, tile)
                   : NarrowRunsAvx512<4, 2>(plan, ids, tile);
    default:
      return bytes ? NarrowRunsAvx512<8, 1>(plan, ids, tile)
                   : NarrowRunsAvx512<8, 2>(plan, ids, tile);
  }
}

}  // namespace

const PackOps& Avx512Ops() {
  static constexpr PackOps kOps{&CopyCheckAvx512, &NarrowAvx512};
  return kOps;
}

void PrepareAvx512(PackPlan& plan) {
  const bool bytes = plan.shape.id_bytes() == 1;
  const std::size_t lanes = bytes ? 64 : 32;
  const std::size_t top_k = static_cast<std::size_t>(plan.shape.top_k);
  if ((bytes && top_k == 8) || top_k > lanes) return;
  plan.chunk = static_cast<std::uint32_t>(lanes / top_k * top_k);
  for (std::size_t lane = 0; lane < plan.chunk; lane += top_k) {
    plan.layer_starts |= std::uint64_t{1} << lane;
  }
}

}  // namespace waymark::kernels::internal

#endif  // defined(__x86_64__)
