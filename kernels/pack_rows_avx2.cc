// PackRows for x86-64 with AVX2. Compiled for the baseline processor: only the functions marked so
// use more, and they run only where SupportedIsas() has found the instructions.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/pack_rows_ops.h"

#define WAYMARK_AVX2 __attribute__((target("avx2")))
#define WAYMARK_AVX2_INLINE __attribute__((target("avx2"), always_inline)) inline

namespace waymark::kernels::internal {
namespace {

WAYMARK_AVX2_INLINE __m256i Load256(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
WAYMARK_AVX2_INLINE void Store256(std::uint8_t* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}
WAYMARK_AVX2_INLINE __m128i Load128(const std::uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
WAYMARK_AVX2_INLINE void Store128(std::uint8_t* to, __m128i value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
}

// ---- copying and checking packed rows

// Lanes of a vector of packed ids, in which a layer must fit.
template <class Packed>
inline constexpr std::size_t kLanes = 32 / sizeof(Packed);

// The lanes whose ids are the same; those that are at least `limit`.
template <class Packed>
WAYMARK_AVX2_INLINE __m256i Equal(__m256i a, __m256i b) {
  return sizeof(Packed) == 1 ? _mm256_cmpeq_epi8(a, b) : _mm256_cmpeq_epi16(a, b);
}
template <class Packed>
WAYMARK_AVX2_INLINE __m256i AtLeast(__m256i ids, __m256i limit) {
  return Equal<Packed>(
      sizeof(Packed) == 1 ? _mm256_max_epu8(ids, limit) : _mm256_max_epu16(ids, limit), ids);
}
template <class Packed>
WAYMARK_AVX2_INLINE __m256i SetAll(std::int32_t value) {
  return sizeof(Packed) == 1 ? _mm256_set1_epi8(static_cast<char>(value))
                             : _mm256_set1_epi16(static_cast<std::int16_t>(value));
}

// Layers of K ids, as many at a time as a vector holds: each id is compared with those 1 ... K - 1
// further on, as far as they are of its layer.
template <class Packed>
WAYMARK_AVX2 bool CopyCheckLayers(const PackPlan& plan, const std::uint8_t* input,
                                  std::uint8_t* destination) {
  const std::int32_t top_k = plan.shape.top_k;
  const std::size_t chunk = kLanes<Packed> / static_cast<std::size_t>(top_k) *
                            static_cast<std::size_t>(top_k) * sizeof(Packed);
  const std::size_t reach = 32 + static_cast<std::size_t>(top_k - 1) * sizeof(Packed);
  const std::size_t bytes = plan.row_ids * sizeof(Packed);
  const __m256i places = Load256(plan.whole_layers.data());
  const __m256i limit = SetAll<Packed>(plan.shape.num_experts);
  __m256i bad = _mm256_setzero_si256();
  const auto check = [&](__m256i ids, const std::uint8_t* at) WAYMARK_AVX2 {
    for (std::int32_t apart = 1; apart < top_k; ++apart) {
      const __m256i last = SetAll<Packed>(top_k - apart);  // whose partner is in the next layer
      const __m256i partners = Load256(at + static_cast<std::size_t>(apart) * sizeof(Packed));
      const __m256i in_layer =
          sizeof(Packed) == 1 ? _mm256_cmpgt_epi8(last, places) : _mm256_cmpgt_epi16(last, places);
      bad = _mm256_or_si256(bad, _mm256_and_si256(in_layer, Equal<Packed>(ids, partners)));
    }
    if (plan.copy_checks_range) bad = _mm256_or_si256(bad, AtLeast<Packed>(ids, limit));
  };
  std::size_t at = 0;
  for (; at + reach <= bytes; at += chunk) {
    const __m256i ids = Load256(input + at);
    Store256(destination + at, ids);  // what is behind the chunk is stored again
    check(ids, input + at);
  }
  for (; at < bytes; at += chunk) {
    std::array<std::uint8_t, PackPlan::kWholeLayers> last = plan.whole_layers;
    const std::size_t rest = std::min(chunk, bytes - at);
    std::memcpy(last.data(), input + at, rest);
    if (input != destination) std::memcpy(destination + at, last.data(), rest);
    check(Load256(last.data()), last.data());
  }
  return _mm256_testz_si256(bad, bad) != 0;
}

// Layers of 8 bytes, two vectors at a time: ids 4 apart fill one comparison for both.
template <bool kCheckRange>
WAYMARK_AVX2 bool CopyCheckBytes8(const PackPlan& plan, const std::uint8_t* input,
                                  std::uint8_t* destination) {
  // Each layer rotated by 1, 2 and 3 ids. A shuffle stays within 16 lanes, which are two layers.
  constexpr long long k1[] = {0x0007060504030201, 0x080f0e0d0c0b0a09};
  constexpr long long k2[] = {0x0100070605040302, 0x09080f0e0d0c0b0a};
  constexpr long long k3[] = {0x0201000706050403, 0x0a09080f0e0d0c0b};
  const __m256i by_1 = _mm256_setr_epi64x(k1[0], k1[1], k1[0], k1[1]);
  const __m256i by_2 = _mm256_setr_epi64x(k2[0], k2[1], k2[0], k2[1]);
  const __m256i by_3 = _mm256_setr_epi64x(k3[0], k3[1], k3[0], k3[1]);
  const __m256i limit = SetAll<std::uint8_t>(plan.shape.num_experts);
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
      bad_a = _mm256_or_si256(bad_a, AtLeast<std::uint8_t>(a, limit));
      bad_b = _mm256_or_si256(bad_b, AtLeast<std::uint8_t>(b, limit));
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

bool CopyCheckAvx2(const PackPlan& plan, const std::uint8_t* input, std::uint8_t* destination) {
  const bool bytes = plan.shape.id_bytes() == 1;
  if (bytes && plan.shape.top_k == 8 && plan.row_ids >= 32) {
    return plan.copy_checks_range ? CopyCheckBytes8<true>(plan, input, destination)
                                  : CopyCheckBytes8<false>(plan, input, destination);
  }
  // Layers of up to four bytes are compared as numbers there.
  if ((bytes && plan.shape.top_k <= 4) || plan.shape.top_k > (bytes ? 32 : 16)) {
    return PortableOps().copy_check(plan, input, destination);
  }
  return bytes ? CopyCheckLayers<std::uint8_t>(plan, input, destination)
               : CopyCheckLayers<std::uint16_t>(plan, input, destination);
}

// ---- narrowing

// `n` <= 8 ids as shorts, zeros behind them; kEight: n is 8. Ids out of range become any short, but
// `most` grows beyond the limit: lanes of 32 bits, of 16 where Input has no more. REQUIRES: of
// bytes n is 8, of shorts it is even.
template <class Input, bool kEight>
WAYMARK_AVX2_INLINE __m128i LoadShorts(const std::uint8_t* from, int n, __m256i& most) {
  if constexpr (sizeof(Input) <= 2) {
    const auto* const words = reinterpret_cast<const int*>(from);
    const __m128i pairs = _mm_cmpgt_epi32(_mm_set1_epi32(n / 2), _mm_setr_epi32(0, 1, 2, 3));
    const __m128i ids = sizeof(Input) == 1 ? _mm_cvtepu8_epi16(_mm_loadu_si64(from))
                        : kEight           ? Load128(from)
                                           : _mm_maskload_epi32(words, pairs);
    most = _mm256_max_epu16(most, _mm256_zextsi128_si256(ids));
    return ids;
  } else {
    __m256i ids;
    if constexpr (sizeof(Input) == 4) {
      ids = kEight ? Load256(from)
                   : _mm256_maskload_epi32(
                         reinterpret_cast<const int*>(from),
                         _mm256_cmpgt_epi32(_mm256_set1_epi32(n),
                                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
    } else {
      const auto* const words = reinterpret_cast<const long long*>(from);
      const __m256i count = _mm256_set1_epi64x(n);
      const __m256i places = _mm256_setr_epi64x(0, 1, 2, 3);
      const __m256i behind = _mm256_setr_epi64x(4, 5, 6, 7);
      const __m256 a = _mm256_castsi256_ps(
          kEight ? Load256(from) : _mm256_maskload_epi64(words, _mm256_cmpgt_epi64(count, places)));
      const __m256 b = _mm256_castsi256_ps(
          kEight ? Load256(from + 32)
                 : _mm256_maskload_epi64(words + 4, _mm256_cmpgt_epi64(count, behind)));
      const __m256i low = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
      const __m256i high = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
      const __m256i fits = _mm256_cmpeq_epi32(high, _mm256_setzero_si256());
      // Where the upper half is not 0, the greatest number of 32 bits. The shuffles have put ids 4
      // and 5 between ids 1 and 2.
      ids = _mm256_permute4x64_epi64(
          _mm256_or_si256(low, _mm256_xor_si256(fits, _mm256_set1_epi32(-1))), 0xd8);
    }
    most = _mm256_max_epu32(most, ids);
    return _mm_packus_epi32(_mm256_castsi256_si128(ids), _mm256_extracti128_si256(ids, 1));
  }
}

template <class Input>
WAYMARK_AVX2_INLINE bool AllBelow(__m256i most, std::uint64_t limit) {
  const auto first_bad = static_cast<std::int32_t>(limit);
  const __m256i out =
      sizeof(Input) <= 2
          ? AtLeast<std::uint16_t>(most, SetAll<std::uint16_t>(first_bad))
          : _mm256_cmpeq_epi32(_mm256_max_epu32(most, _mm256_set1_epi32(first_bad)), most);
  return _mm256_testz_si256(out, out) != 0;
}

// The ids of a layer are neighbours. Takes eight of them at a time, the last eight for the second
// time where K is no multiple of 8. Of K < 8 eight are stored: what is behind them is overwritten
// by the next layer, or goes into the slack. Returns whether all ids are in range.
template <class Input, class Packed, bool kEight>
WAYMARK_AVX2 bool NarrowRuns(const PackPlan& plan, const IdsView& ids, const Tile& tile) {
  const std::int32_t top_k = plan.shape.top_k;
  __m256i most = _mm256_setzero_si256();
  for (std::int32_t layer = 0; layer < plan.shape.num_layers; ++layer) {
    const std::uint8_t* input = tile.input + layer * ids.layer_stride;
    std::uint8_t* to = tile.staged + static_cast<std::size_t>(layer * top_k) * sizeof(Packed);
    for (std::size_t row = 0; row < tile.rows; ++row) {
      for (std::int32_t k = 0; k < top_k; k += 8) {
        const auto first = static_cast<std::size_t>(kEight ? std::min(k, top_k - 8) : 0);
        const __m128i shorts =
            LoadShorts<Input, kEight>(input + first * sizeof(Input), top_k, most);
        if constexpr (sizeof(Packed) == 1) {
          _mm_storeu_si64(to + first, _mm_packus_epi16(shorts, shorts));
        } else {
          Store128(to + first * sizeof(Packed), shorts);
        }
      }
      input += ids.row_stride;
      to += tile.staged_stride;
    }
  }
  return AllBelow<Input>(most, plan.limit);
}

// Layers of 8 ids to bytes: two at a time, so that each row gets 16 bytes in one store. The last
// layer of an odd number is there twice, and ends in the slack.
template <class Input>
WAYMARK_AVX2 bool NarrowEights(const PackPlan& plan, const IdsView& ids, const Tile& tile) {
  const std::int32_t layers = plan.shape.num_layers;
  __m256i most = _mm256_setzero_si256();
  for (std::int32_t layer = 0; layer < layers; layer += 2) {
    const std::uint8_t* first = tile.input + layer * ids.layer_stride;
    const std::uint8_t* second = layer + 1 < layers ? first + ids.layer_stride : first;
    std::uint8_t* to = tile.staged + layer * 8;
#pragma GCC unroll 4
    for (std::size_t row = 0; row < tile.rows; ++row) {
      Store128(to, _mm_packus_epi16(LoadShorts<Input, true>(first, 8, most),
                                    LoadShorts<Input, true>(second, 8, most)));
      first += ids.row_stride;
      second += ids.row_stride;
      to += tile.staged_stride;
    }
  }
  return AllBelow<Input>(most, plan.limit);
}

template <class Input>
bool NarrowLayers(const PackPlan& plan, const IdsView& ids, const Tile& tile) {
  const bool bytes = plan.shape.id_bytes() == 1;
  if (bytes && plan.shape.top_k == 8) return NarrowEights<Input>(plan, ids, tile);
  if (plan.shape.top_k >= 8) {
    return bytes ? NarrowRuns<Input, std::uint8_t, true>(plan, ids, tile)
                 : NarrowRuns<Input, std::uint16_t, true>(plan, ids, tile);
  }
  if (sizeof(Input) == 1 || (sizeof(Input) == 2 && plan.shape.top_k % 2 != 0)) return false;
  return bytes ? NarrowRuns<Input, std::uint8_t, false>(plan, ids, tile)
               : NarrowRuns<Input, std::uint16_t, false>(plan, ids, tile);
}

// Whether the rows of the tile are narrow, and all ids in range.
bool NarrowAllRight(const PackPlan& plan, const IdsView& ids, const Tile& tile) {
  const std::size_t input_bytes = IdKindBytes(ids.kind);
  if (!tile.slack || ids.k_stride != static_cast<std::ptrdiff_t>(input_bytes)) return false;
  switch (input_bytes) {
    case 1:
      return NarrowLayers<std::uint8_t>(plan, ids, tile);
    case 2:
      return NarrowLayers<std::uint16_t>(plan, ids, tile);
    case 4:
      return NarrowLayers<std::uint32_t>(plan, ids, tile);
    default:
      return NarrowLayers<std::uint64_t>(plan, ids, tile);
  }
}

void NarrowAvx2(const PackPlan& plan, const IdsView& ids, Tile& tile) {
  tile.in_range.fill(true);
  // Which rows are not right: seldom asked, and slow.
  if (!NarrowAllRight(plan, ids, tile)) NarrowTileByKind(plan, ids, tile);
}

}  // namespace

const PackOps& Avx2Ops() {
  static constexpr PackOps kOps{&CopyCheckAvx2, &NarrowAvx2};
  return kOps;
}

}  // namespace waymark::kernels::internal

#endif  // defined(__x86_64__)
