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

// 16 bytes of each of four rows, `stride` bytes apart at `to`.
WAYMARK_AVX512_INLINE void StoreFourRows(__m512i rows, std::uint8_t* to, std::size_t stride) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(rows));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + stride), _mm512_extracti32x4_epi32(rows, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * stride), _mm512_extracti32x4_epi32(rows, 2));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 3 * stride), _mm512_extracti32x4_epi32(rows, 3));
}

// Layers of 8 shorts to bytes, of rows that follow each other: four of them are one cache line. Two
// layers at a time, so that each row gets 16 bytes in one store; the last layer of an odd number is
// there twice, and ends in the slack. Returns whether all ids are in range.
WAYMARK_AVX512 bool NarrowShorts8Avx512(const PackPlan& plan, const IdsView& ids,
                                        const Tile& tile) {
  const std::int32_t layers = plan.shape.num_layers;
  const std::size_t stride = tile.staged_stride;
  __m512i most = _mm512_setzero_si512();
  for (std::int32_t layer = 0; layer < layers; layer += 2) {
    const std::uint8_t* first = tile.input + layer * ids.layer_stride;
    const std::uint8_t* second = layer + 1 < layers ? first + ids.layer_stride : first;
    std::uint8_t* to = tile.staged + layer * 8;
    for (std::size_t row = 0; row < tile.rows; row += 4) {
      const std::size_t rows = std::min<std::size_t>(4, tile.rows - row);
      const auto lanes = static_cast<__mmask8>(Lanes(2 * rows));
      const __m512i a = _mm512_maskz_loadu_epi64(lanes, first);
      const __m512i b = _mm512_maskz_loadu_epi64(lanes, second);
      most = _mm512_max_epu16(most, _mm512_max_epu16(a, b));
      // Each quarter of the vector is one row: of the first layer, then of the second. Rows behind
      // the last one are staged, too: there is room for whole groups of four.
      const __m512i packed = _mm512_packus_epi16(a, b);
      StoreFourRows(packed, to, stride);
      first += 64;
      second += 64;
      to += 4 * stride;
    }
  }
  return _mm512_cmpge_epu16_mask(most, _mm512_set1_epi16(static_cast<short>(plan.limit))) == 0;
}

// Layers of 8 ints to bytes, of rows that follow each other: two of them are one cache line. Two
// layers of four rows at a time, as above.
WAYMARK_AVX512 bool NarrowInts8Avx512(const PackPlan& plan, const IdsView& ids, const Tile& tile) {
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
      const std::size_t rows = std::min<std::size_t>(4, tile.rows - row);
      const std::uint64_t lanes = Lanes(4 * rows);
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
      StoreFourRows(packed, to, stride);
      first += 128;
      second += 128;
      to += 4 * stride;
    }
  }
  return _mm512_cmpge_epu32_mask(most, _mm512_set1_epi32(static_cast<int>(plan.limit))) == 0;
}

// One vector of input ids of `kInputBytes` to packed ids of `kPackedBytes`, of which the first
// `lanes` are loaded. All of it is stored: what is behind the run is overwritten by the next one,
// or goes into the slack. (A masked store that narrows takes 150 ns on Zen 4.)
template <int kInputBytes, int kPackedBytes>
struct Narrow512;

#define WAYMARK_NARROW512(input_bytes, packed_bytes, lane_count, mask, bits, number, store) \
  template <>                                                                               \
  struct Narrow512<input_bytes, packed_bytes> {                                             \
    static constexpr std::size_t kLanes = lane_count;                                       \
    static WAYMARK_AVX512_INLINE bool Run(std::uint64_t lanes, std::uint64_t limit,         \
                                          const std::uint8_t* input, std::uint8_t* to) {    \
      const __m512i ids = _mm512_maskz_loadu_epi##bits(static_cast<mask>(lanes), input);    \
      store;                                                                                \
      return _mm512_mask_cmpge_epu##bits##_mask(                                            \
                 static_cast<mask>(lanes), ids,                                             \
                 _mm512_set1_epi##bits(static_cast<number>(limit))) == 0;                   \
    }                                                                                       \
  };
WAYMARK_NARROW512(2, 1, 32, __mmask32, 16, short,
                  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8(ids)))
WAYMARK_NARROW512(2, 2, 32, __mmask32, 16, short, _mm512_storeu_si512(to, ids))
WAYMARK_NARROW512(4, 1, 16, __mmask16, 32, int,
                  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(ids)))
WAYMARK_NARROW512(4, 2, 16, __mmask16, 32, int,
                  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(ids)))
WAYMARK_NARROW512(8, 1, 8, __mmask8, 64, long long,
                  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm512_cvtepi64_epi8(ids)))
WAYMARK_NARROW512(8, 2, 8, __mmask8, 64, long long,
                  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi64_epi16(ids)))
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
      const std::uint8_t* input =
          tile.input + static_cast<std::ptrdiff_t>(row) * ids.row_stride + r * ids.layer_stride;
      std::uint8_t* packed =
          tile.staged + row * tile.staged_stride + static_cast<std::size_t>(r) * run * kPackedBytes;
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
  if (ids.k_stride != input_bytes || input_bytes == 1 || !tile.slack) {
    return NarrowTileByKind(plan, ids, tile);
  }
  const bool bytes = plan.shape.id_bytes() == 1;
  if (bytes && plan.shape.top_k == 8 && ids.row_stride == 8 * input_bytes && input_bytes < 8) {
    const bool in_range = input_bytes == 2 ? NarrowShorts8Avx512(plan, ids, tile)
                                           : NarrowInts8Avx512(plan, ids, tile);
    tile.in_range.fill(true);
    // Which rows are not: seldom asked, and slow.
    if (!in_range) NarrowTileByKind(plan, ids, tile);
    return;
  }
  switch (input_bytes) {
    case 2:
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
