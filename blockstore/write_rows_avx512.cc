// WriteRows for x86-64 with AVX-512 F, BW and VL. Compiled for the baseline processor: only the
// functions marked so use more, and they run only where SupportedLayerOps() has found the
// instructions.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "blockstore/write_rows_ops.h"

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's own headers make "undefined" vectors by initialising a variable with itself.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WAYMARK_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define WAYMARK_AVX512_INLINE \
  __attribute__((target("avx512f,avx512bw,avx512vl"), always_inline)) inline

namespace waymark::internal {
namespace {

// kBytes bytes, or, if it is 0, those of `mask`: which takes several times as long.
template <int kBytes>
WAYMARK_AVX512_INLINE __m256i LoadWide(const std::uint8_t* from, __mmask32 mask) {
  if constexpr (kBytes == 32) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm256_maskz_loadu_epi8(mask, from);
}
template <int kBytes>
WAYMARK_AVX512_INLINE __m128i Load(const std::uint8_t* from, __mmask32 mask) {
  if constexpr (kBytes == 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  if constexpr (kBytes == 8) return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  if constexpr (kBytes == 4) {
    std::int32_t word;
    std::memcpy(&word, from, sizeof(word));
    return _mm_cvtsi32_si128(word);
  }
  return _mm_maskz_loadu_epi8(static_cast<__mmask16>(mask), from);
}

// Writes 64 bytes of ids of kTo bytes, or 32.
template <int kFrom, int kTo, int kBytes>
WAYMARK_AVX512_INLINE void Widen64(const std::uint8_t* from, __mmask32 mask, std::uint8_t* to) {
  __m512i ids;
  if constexpr (kFrom == 2 && kTo == 4) {
    ids = _mm512_cvtepu16_epi32(LoadWide<kBytes>(from, mask));
  } else {
    const __m128i stored = Load<kBytes>(from, mask);
    if constexpr (kFrom == 2) {
      ids = _mm512_cvtepu16_epi64(stored);
    } else {
      ids = kTo == 8 ? _mm512_cvtepu8_epi64(stored) : _mm512_cvtepu8_epi32(stored);
    }
  }
  _mm512_storeu_si512(to, ids);
}
template <int kFrom, int kTo, int kBytes>
WAYMARK_AVX512_INLINE void Widen32(const std::uint8_t* from, __mmask32 mask, std::uint8_t* to) {
  const __m128i stored = Load<kBytes>(from, mask);
  __m256i ids;
  if constexpr (kFrom == 1) {
    ids = kTo == 8 ? _mm256_cvtepu8_epi64(stored) : _mm256_cvtepu8_epi32(stored);
  } else {
    ids = kTo == 8 ? _mm256_cvtepu16_epi64(stored) : _mm256_cvtepu16_epi32(stored);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), ids);
}

// The mask of a load of `ids` stored ids.
template <int kFrom>
WAYMARK_AVX512_INLINE __mmask32 MaskOf(std::size_t ids) {
  return static_cast<__mmask32>((std::uint64_t{1} << (ids * kFrom)) - 1);
}

// Rows whose ids take at most half a vector.
template <int kFrom, int kTo, int kBytes>
WAYMARK_AVX512 void Narrow(const LayerRows& layer, std::uint8_t* to) {
  const std::size_t row_bytes = layer.top_k * kTo;
  const __mmask32 mask = MaskOf<kFrom>(layer.top_k);
  const __m256i missing = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(layer.missing));
  const std::uint8_t* const* const end = layer.rows.data() + layer.rows.size();
  for (const std::uint8_t* const* at = layer.rows.data(); at != end; ++at) {
    const std::uint8_t* const row = *at;
    if constexpr (kBytes * kTo == 32 * kFrom) {  // rows of half a vector: two at a time
      if (at + 1 != end && row != nullptr && at[1] == row + kBytes) {
        Widen64<kFrom, kTo, 2 * kBytes>(row + layer.offset, 0, to);
        to += 64;
        ++at;
        continue;
      }
    }
    if (row != nullptr) [[likely]] {
      Widen32<kFrom, kTo, kBytes>(row + layer.offset, mask, to);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), missing);
    }
    to += row_bytes;
  }
}

// Rows of one vector.
template <int kFrom, int kTo, int kBytes>
WAYMARK_AVX512 void One(const LayerRows& layer, std::uint8_t* to) {
  const std::size_t row_bytes = layer.top_k * kTo;
  const __mmask32 mask = MaskOf<kFrom>(layer.top_k);
  const __m512i missing = _mm512_loadu_si512(layer.missing);
  for (const std::uint8_t* const row : layer.rows) {
    if (row != nullptr) [[likely]] {
      Widen64<kFrom, kTo, kBytes>(row + layer.offset, mask, to);
    } else {
      _mm512_storeu_si512(to, missing);
    }
    to += row_bytes;
  }
}

// Rows of several vectors; what the last one has too much is overwritten by the next row.
template <int kFrom, int kTo>
WAYMARK_AVX512 void Several(const LayerRows& layer, std::uint8_t* to) {
  constexpr std::size_t kIds = 64 / kTo;
  const std::size_t row_bytes = layer.top_k * kTo;
  const std::size_t last = (layer.top_k - 1) / kIds * kIds;  // the first id of the last vector
  const __mmask32 whole = MaskOf<kFrom>(kIds);
  const __mmask32 rest = MaskOf<kFrom>(layer.top_k - last);
  for (const std::uint8_t* const row : layer.rows) {
    if (row != nullptr) [[likely]] {
      const std::uint8_t* const from = row + layer.offset;
      for (std::size_t k = 0; k < last; k += kIds)
        Widen64<kFrom, kTo, kIds * kFrom <= 16 ? kIds * kFrom : 0>(from + k * kFrom, whole,
                                                                   to + k * kTo);
      Widen64<kFrom, kTo, 0>(from + last * kFrom, rest, to + last * kTo);
    } else {
      for (std::size_t k = 0; k <= last; k += kIds)
        _mm512_storeu_si512(to + k * kTo, _mm512_loadu_si512(layer.missing + k * kTo));
    }
    to += row_bytes;
  }
}

template <int kFrom, int kTo, int kBytes>
LayerOps::Widen OneOf(std::size_t top_k) {
  return top_k * kTo <= 32 ? &Narrow<kFrom, kTo, kBytes> : &One<kFrom, kTo, kBytes>;
}

template <int kFrom, int kTo>
LayerOps::Widen FindOf(std::size_t top_k) {
  if (top_k * kTo > 64) return &Several<kFrom, kTo>;
  switch (top_k * kFrom) {
    case 4:
      return OneOf<kFrom, kTo, 4>(top_k);
    case 8:
      return OneOf<kFrom, kTo, 8>(top_k);
    case 16:
      return OneOf<kFrom, kTo, 16>(top_k);
    default:
      return OneOf<kFrom, kTo, 0>(top_k);
  }
}

LayerOps::Widen Find(std::size_t from_bytes, std::size_t to_bytes, std::size_t top_k) {
  if (to_bytes < 4) return nullptr;
  if (from_bytes == 1) return to_bytes == 8 ? FindOf<1, 8>(top_k) : FindOf<1, 4>(top_k);
  return to_bytes == 8 ? FindOf<2, 8>(top_k) : FindOf<2, 4>(top_k);
}

WAYMARK_AVX512 void Stream(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  }
}

}  // namespace

const LayerOps kLayerOpsAvx512 = {"avx512", &Find, &Stream};

}  // namespace waymark::internal

#endif
