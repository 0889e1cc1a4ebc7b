// PackRows for x86-64 with AVX2. Compiled for the baseline processor: only the functions marked so
// use more, and they run only where SupportedIsas() has found the instructions.
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

#define WAYMARK_AVX2 __attribute__((target("avx2")))
#define WAYMARK_AVX2_INLINE __attribute__((target("avx2"), always_inline)) inline

namespace waymark::kernels::internal {
namespace {

constexpr int kMaxTopKAvx2 = 16;

WAYMARK_AVX2_INLINE __m256i Load256(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
WAYMARK_AVX2_INLINE void Store256(std::uint8_t* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

// What a vector of byte ids, which begins with whole layers of K, is compared with: itself further
// on by `apart`; pairs[apart] has all bits set in the lanes whose partner is in the same layer.
struct LayerLanes {
  alignas(32) std::uint8_t pairs[kMaxTopKAvx2][32];
  // For K = 2, 4, 8, 16: the lanes of every layer rotated.
  alignas(32) std::uint8_t rotated[kMaxTopKAvx2 / 2 + 1][32];
};

constexpr LayerLanes MakeLayerLanes(int top_k) {
  LayerLanes lanes{};
  for (int lane = 0; lane < 32; ++lane) {
    for (int apart = 1; apart < top_k; ++apart) {
      const bool whole = lane < 32 / top_k * top_k;
      lanes.pairs[apart][lane] = whole && lane % top_k + apart < top_k ? 0xff : 0;
    }
    for (int by = 1; by <= top_k / 2; ++by) {
      // A shuffle stays within 16 lanes, and there within a layer.
      lanes.rotated[by][lane] =
          static_cast<std::uint8_t>(lane % 16 / top_k * top_k + (lane + by) % top_k);
    }
  }
  return lanes;
}

template <int kTopK>
inline constexpr LayerLanes kLayerLanes = MakeLayerLanes(kTopK);

// Checks 32 bytes: K a power of two compares every id with its layer rotated by 1 ... K/2, other K
// with the ids further on, which lie at `at`. Adds to `bad`.
template <int kTopK>
WAYMARK_AVX2_INLINE __m256i CheckBytesAvx2(__m256i bad, __m256i ids, const std::uint8_t* at) {
  constexpr const LayerLanes& kLanes = kLayerLanes<kTopK>;
  if constexpr ((kTopK & (kTopK - 1)) == 0) {
    (void)at;
    for (int by = 1; by <= kTopK / 2; ++by) {
      const __m256i how = _mm256_load_si256(reinterpret_cast<const __m256i*>(kLanes.rotated[by]));
      bad = _mm256_or_si256(bad, _mm256_cmpeq_epi8(ids, _mm256_shuffle_epi8(ids, how)));
    }
  } else {
    for (int apart = 1; apart < kTopK; ++apart) {
      const __m256i pairs =
          _mm256_load_si256(reinterpret_cast<const __m256i*>(kLanes.pairs[apart]));
      const __m256i other = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + apart));
      bad = _mm256_or_si256(bad, _mm256_and_si256(pairs, _mm256_cmpeq_epi8(ids, other)));
    }
  }
  return bad;
}

template <int kTopK>
WAYMARK_AVX2 bool CopyCheckBytesAvx2(const PackPlan& plan, const std::uint8_t* input,
                                     std::uint8_t* destination) {
  constexpr std::size_t kChunk = 32 / kTopK * kTopK;
  constexpr bool kPowerOfTwo = (kTopK & (kTopK - 1)) == 0;
  // What a chunk's comparisons read beyond their first byte.
  constexpr std::size_t kReach = kPowerOfTwo ? 32 : 32 + kTopK - 1;
  const __m256i limit = _mm256_set1_epi8(static_cast<char>(plan.shape.num_experts));
  const std::size_t bytes = plan.row_ids;
  __m256i bad = _mm256_setzero_si256();
  std::size_t at = 0;
  for (; at + kReach <= bytes; at += kChunk) {
    const __m256i ids = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(input + at));
    // The lanes beyond the chunk are the next chunk's, or the rest's.
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(destination + at), ids);
    bad = CheckBytesAvx2<kTopK>(bad, ids, input + at);
    if (plan.copy_checks_range) {
      bad = _mm256_or_si256(bad, _mm256_cmpeq_epi8(_mm256_max_epu8(ids, limit), ids));
    }
  }
  if constexpr (kPowerOfTwo) {
    if (at < bytes && bytes >= 32) {
      // Whole layers again, some of them for the second time.
      at = bytes - 32;
      const __m256i ids = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(input + at));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(destination + at), ids);
      bad = CheckBytesAvx2<kTopK>(bad, ids, input + at);
      if (plan.copy_checks_range) {
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi8(_mm256_max_epu8(ids, limit), ids));
      }
      at = bytes;
    }
  }
  while (at < bytes) {
    // Filled up with layers that have nothing wrong: 0 ... K - 1 (or every row is wrong anyway).
    alignas(32) std::uint8_t last[64 + kMaxTopKAvx2];
    for (std::size_t lane = 0; lane < 32; ++lane)
      last[lane] = lane % kTopK;
    const std::size_t rest = std::min(kChunk, bytes - at);
    std::memcpy(last, input + at, rest);
    if (input != destination) std::memcpy(destination + at, last, rest);
    const __m256i ids = _mm256_load_si256(reinterpret_cast<const __m256i*>(last));
    std::memset(last + 32, 0, sizeof(last) - 32);
    bad = CheckBytesAvx2<kTopK>(bad, ids, last);
    if (plan.copy_checks_range) {
      bad = _mm256_or_si256(bad, _mm256_cmpeq_epi8(_mm256_max_epu8(ids, limit), ids));
    }
    at += rest;
  }
  return _mm256_testz_si256(bad, bad) != 0;
}

// Layers of 8 bytes, two vectors at a time: ids 4 apart fill one comparison for both.
template <bool kCheckRange>
WAYMARK_AVX2 bool CopyCheckBytes8Avx2(const PackPlan& plan, const std::uint8_t* input,
                                      std::uint8_t* destination) {
  constexpr const LayerLanes& kLanes = kLayerLanes<8>;
  const __m256i by_1 = Load256(kLanes.rotated[1]);
  const __m256i by_2 = Load256(kLanes.rotated[2]);
  const __m256i by_3 = Load256(kLanes.rotated[3]);
  const __m256i limit = _mm256_set1_epi8(static_cast<char>(plan.shape.num_experts));
  const std::size_t bytes = plan.row_ids;
  __m256i bad_a = _mm256_setzero_si256();
  __m256i bad_b = _mm256_setzero_si256();
  const auto check_two = [&](std::size_t at_a, std::size_t at_b) WAYMARK_AVX2 {
    const __m256i a = Load256(input + at_a);
    const __m256i b = Load256(input + at_b);
    Store256(destination + at_a, a);
    Store256(destination + at_b, b);
    const __m256 low = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88);
    const __m256 high = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd);
    const __m256i a_1 = _mm256_cmpeq_epi8(a, _mm256_shuffle_epi8(a, by_1));
    const __m256i b_1 = _mm256_cmpeq_epi8(b, _mm256_shuffle_epi8(b, by_1));
    const __m256i a_2 = _mm256_cmpeq_epi8(a, _mm256_shuffle_epi8(a, by_2));
    const __m256i b_2 = _mm256_cmpeq_epi8(b, _mm256_shuffle_epi8(b, by_2));
    const __m256i a_3 = _mm256_cmpeq_epi8(a, _mm256_shuffle_epi8(a, by_3));
    const __m256i b_3 = _mm256_cmpeq_epi8(b, _mm256_shuffle_epi8(b, by_3));
    const __m256i both_4 = _mm256_cmpeq_epi8(_mm256_castps_si256(low), _mm256_castps_si256(high));
    const __m256i both_1 = _mm256_or_si256(a_1, b_1);
    const __m256i both_2 = _mm256_or_si256(a_2, b_2);
    const __m256i both_3 = _mm256_or_si256(a_3, b_3);
    bad_a = _mm256_or_si256(bad_a, _mm256_or_si256(both_1, both_2));
    bad_b = _mm256_or_si256(bad_b, _mm256_or_si256(both_3, both_4));
    if constexpr (kCheckRange) {
      bad_a = _mm256_or_si256(bad_a, _mm256_cmpeq_epi8(_mm256_max_epu8(a, limit), a));
      bad_b = _mm256_or_si256(bad_b, _mm256_cmpeq_epi8(_mm256_max_epu8(b, limit), b));
    }
  };
  std::size_t at = 0;
  for (; at + 64 <= bytes; at += 64)
    check_two(at, at + 32);
  // Some layers for the second time.
  if (at + 32 < bytes) {
    check_two(at, bytes - 32);
  } else if (at < bytes) {
    check_two(bytes - 32, bytes - 32);
  }
  const __m256i bad = _mm256_or_si256(bad_a, bad_b);
  return _mm256_testz_si256(bad, bad) != 0;
}

using CopyCheck = bool (*)(const PackPlan&, const std::uint8_t*, std::uint8_t*);
constexpr CopyCheck kCopyCheckBytesAvx2[kMaxTopKAvx2 + 1] = {
    nullptr,
    &CopyCheckBytesAvx2<1>,
    &CopyCheckBytesAvx2<2>,
    &CopyCheckBytesAvx2<3>,
    &CopyCheckBytesAvx2<4>,
    &CopyCheckBytesAvx2<5>,
    &CopyCheckBytesAvx2<6>,
    &CopyCheckBytesAvx2<7>,
    &CopyCheckBytesAvx2<8>,
    &CopyCheckBytesAvx2<9>,
    &CopyCheckBytesAvx2<10>,
    &CopyCheckBytesAvx2<11>,
    &CopyCheckBytesAvx2<12>,
    &CopyCheckBytesAvx2<13>,
    &CopyCheckBytesAvx2<14>,
    &CopyCheckBytesAvx2<15>,
    &CopyCheckBytesAvx2<16>,
};

bool CopyCheckAvx2(const PackPlan& plan, const std::uint8_t* input, std::uint8_t* destination) {
  if (plan.shape.id_bytes() == 1 && plan.shape.top_k == 8 && plan.row_ids >= 32) {
    return plan.copy_checks_range ? CopyCheckBytes8Avx2<true>(plan, input, destination)
                                  : CopyCheckBytes8Avx2<false>(plan, input, destination);
  }
  if (plan.shape.id_bytes() == 1 && plan.shape.top_k <= kMaxTopKAvx2) {
    return kCopyCheckBytesAvx2[plan.shape.top_k](plan, input, destination);
  }
  return PortableOps().copy_check(plan, input, destination);
}

// K <= 8 shorts that are neighbours, and zeros.
template <int kTopK>
WAYMARK_AVX2_INLINE __m128i LoadShorts(const std::uint8_t* input) {
  if constexpr (kTopK == 8) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(input));
  } else {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    std::memcpy(&low, input, std::min(8, 2 * kTopK));
    if constexpr (kTopK > 4) std::memcpy(&high, input + 8, 2 * kTopK - 8);
    return _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
  }
}

// Shorts to bytes. Stores 8 bytes per layer, in order: excess bytes are overwritten by the next
// layer, or goes into the slack.
template <int kTopK>
WAYMARK_AVX2 void NarrowShortsAvx2(const PackPlan& plan, const IdsView& ids, Tile& tile) {
  const __m128i limit = _mm_set1_epi16(static_cast<std::int16_t>(plan.limit));
  for (std::size_t row = 0; row < tile.rows; row += 4) {
    const std::size_t rows = std::min<std::size_t>(4, tile.rows - row);
    __m128i most[4] = {};
    for (std::int32_t layer = 0; layer < plan.shape.num_layers; ++layer) {
      const std::ptrdiff_t offset = layer * ids.layer_stride;
      for (std::size_t i = 0; i < rows; ++i) {
        const std::uint8_t* input =
            tile.input + static_cast<std::ptrdiff_t>(row + i) * ids.row_stride + offset;
        std::uint8_t* to = tile.staged + (row + i) * tile.staged_stride + layer * kTopK;
        const __m128i wide = LoadShorts<kTopK>(input);
        most[i] = _mm_max_epu16(most[i], wide);
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(wide, wide));
      }
    }
    for (std::size_t i = 0; i < rows; ++i) {
      const __m128i out = _mm_cmpeq_epi16(_mm_max_epu16(most[i], limit), most[i]);
      tile.in_range[row + i] = _mm_testz_si128(out, out) != 0;
    }
  }
}

// Layers of 8 shorts, of rows that follow each other: of two rows and two layers at a time, so that
// each row gets 16 bytes in one store. The last layer of an odd number is there twice, and ends in
// the slack. Returns whether all ids are in range.
WAYMARK_AVX2 bool NarrowShorts8Avx2(const PackPlan& plan, const IdsView& ids, const Tile& tile) {
  const __m256i limit = _mm256_set1_epi16(static_cast<std::int16_t>(plan.limit));
  const std::int32_t layers = plan.shape.num_layers;
  const std::size_t stride = tile.staged_stride;
  __m256i most = _mm256_setzero_si256();
  for (std::int32_t layer = 0; layer < layers; layer += 2) {
    const std::uint8_t* first = tile.input + layer * ids.layer_stride;
    const std::uint8_t* second = layer + 1 < layers ? first + ids.layer_stride : first;
    std::uint8_t* to = tile.staged + layer * 8;
    std::size_t row = 0;
    for (; row + 2 <= tile.rows; row += 2) {
      const __m256i a = Load256(first + row * 16);
      const __m256i b = Load256(second + row * 16);
      most = _mm256_max_epu16(most, _mm256_max_epu16(a, b));
      // Each half of the vector is one row: of the first layer, then of the second.
      const __m256i packed = _mm256_packus_epi16(a, b);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + row * stride),
                       _mm256_castsi256_si128(packed));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (row + 1) * stride),
                       _mm256_extracti128_si256(packed, 1));
    }
    if (row < tile.rows) {
      const __m128i a = LoadShorts<8>(first + row * 16);
      const __m128i b = LoadShorts<8>(second + row * 16);
      most = _mm256_max_epu16(most, _mm256_zextsi128_si256(_mm_max_epu16(a, b)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + row * stride), _mm_packus_epi16(a, b));
    }
  }
  const __m256i out = _mm256_cmpeq_epi16(_mm256_max_epu16(most, limit), most);
  return _mm256_testz_si256(out, out) != 0;
}

// Layers of 8 ints, of rows that follow each other: of two rows and two layers, as above.
WAYMARK_AVX2 bool NarrowInts8Avx2(const PackPlan& plan, const IdsView& ids, const Tile& tile) {
  const __m256i limit = _mm256_set1_epi32(static_cast<int>(plan.limit));
  // Packing works within 16 bytes: halves of both layers of the first row, then of the second.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const std::int32_t layers = plan.shape.num_layers;
  const std::size_t stride = tile.staged_stride;
  __m256i most = _mm256_setzero_si256();
  for (std::int32_t layer = 0; layer < layers; layer += 2) {
    const std::uint8_t* first = tile.input + layer * ids.layer_stride;
    const std::uint8_t* second = layer + 1 < layers ? first + ids.layer_stride : first;
    std::uint8_t* to = tile.staged + layer * 8;
    for (std::size_t row = 0; row < tile.rows; row += 2) {
      const std::size_t next = row + 1 < tile.rows ? row + 1 : row;
      const __m256i a = Load256(first + row * 32);
      const __m256i b = Load256(second + row * 32);
      const __m256i c = Load256(first + next * 32);
      const __m256i d = Load256(second + next * 32);
      most =
          _mm256_max_epu32(most, _mm256_max_epu32(_mm256_max_epu32(a, b), _mm256_max_epu32(c, d)));
      const __m256i packed = _mm256_permutevar8x32_epi32(
          _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d)), order);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + row * stride),
                       _mm256_castsi256_si128(packed));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + next * stride),
                       _mm256_extracti128_si256(packed, 1));
    }
  }
  const __m256i out = _mm256_cmpeq_epi32(_mm256_max_epu32(most, limit), most);
  return _mm256_testz_si256(out, out) != 0;
}

using Narrow = void (*)(const PackPlan&, const IdsView&, Tile&);
constexpr Narrow kNarrowShortsAvx2[9] = {
    nullptr,
    &NarrowShortsAvx2<1>,
    &NarrowShortsAvx2<2>,
    &NarrowShortsAvx2<3>,
    &NarrowShortsAvx2<4>,
    &NarrowShortsAvx2<5>,
    &NarrowShortsAvx2<6>,
    &NarrowShortsAvx2<7>,
    &NarrowShortsAvx2<8>,
};

void NarrowAvx2(const PackPlan& plan, const IdsView& ids, Tile& tile) {
  const auto input_bytes = static_cast<std::ptrdiff_t>(IdKindBytes(ids.kind));
  const bool to_bytes = tile.slack && ids.k_stride == input_bytes && plan.shape.id_bytes() == 1;
  const std::int32_t top_k = plan.shape.top_k;
  if (to_bytes && top_k == 8 && ids.row_stride == 8 * input_bytes &&
      (input_bytes == 2 || input_bytes == 4)) {
    const bool in_range =
        input_bytes == 2 ? NarrowShorts8Avx2(plan, ids, tile) : NarrowInts8Avx2(plan, ids, tile);
    tile.in_range.fill(true);
    // Which rows are not: seldom asked, and slow.
    if (!in_range) NarrowTileByKind(plan, ids, tile);
    return;
  }
  if (to_bytes && input_bytes == 2 && top_k <= 8) {
    return kNarrowShortsAvx2[top_k](plan, ids, tile);
  }
  NarrowTileByKind(plan, ids, tile);
}

}  // namespace

const PackOps& Avx2Ops() {
  static constexpr PackOps kOps{&CopyCheckAvx2, &NarrowAvx2};
  return kOps;
}

}  // namespace waymark::kernels::internal

#endif  // defined(__x86_64__)
