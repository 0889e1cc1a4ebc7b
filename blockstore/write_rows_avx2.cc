// WriteRows for x86-64 with AVX2, for layers of 4, 8 or 16 bytes of stored ids. Compiled for the
// baseline processor: only the functions marked so use more, and they run only where
// SupportedLayerOps() has found the instructions.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "blockstore/write_layers.h"

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's own headers make "undefined" vectors by initialising a variable with itself.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WAYMARK_AVX2 __attribute__((target("avx2")))
#define WAYMARK_AVX2_INLINE __attribute__((target("avx2"), always_inline)) inline

namespace waymark::internal {
namespace {

template <int kBytes>
WAYMARK_AVX2_INLINE __m128i Load(const std::uint8_t* from) {
  if constexpr (kBytes == 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  if constexpr (kBytes == 8) return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  std::int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return _mm_cvtsi32_si128(word);
}

// Writes the stored ids in `ids` from byte kAt to kBytes as ids of kTo bytes.
template <int kFrom, int kTo, int kBytes, int kAt = 0>
WAYMARK_AVX2_INLINE void Widen(__m128i ids, std::uint8_t* to) {
  const __m128i part = _mm_srli_si128(ids, kAt);
  __m256i wide;
  if constexpr (kFrom == 1) {
    wide = kTo == 8 ? _mm256_cvtepu8_epi64(part) : _mm256_cvtepu8_epi32(part);
  } else {
    wide = kTo == 8 ? _mm256_cvtepu16_epi64(part) : _mm256_cvtepu16_epi32(part);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), wide);
  constexpr int kNext = kAt + 32 / kTo * kFrom;
  if constexpr (kNext < kBytes) Widen<kFrom, kTo, kBytes, kNext>(ids, to + 32);
}

template <int kFrom, int kTo, int kBytes>
WAYMARK_AVX2 void WidenLayer(const LayerRows& layer, std::uint8_t* to) {
  constexpr std::size_t kRowBytes = kBytes / kFrom * kTo;
  for (const std::uint8_t* const row : layer.rows) {
    if (row != nullptr) [[likely]] {
      Widen<kFrom, kTo, kBytes>(Load<kBytes>(row + layer.offset), to);
    } else {
      std::memcpy(to, layer.missing, kRowBytes);
    }
    to += kRowBytes;
  }
}

template <int kFrom, int kTo>
LayerOps::Widen FindOf(std::size_t layer_bytes) {
  switch (layer_bytes) {
    case 4:
      return &WidenLayer<kFrom, kTo, 4>;
    case 8:
      return &WidenLayer<kFrom, kTo, 8>;
    case 16:
      return &WidenLayer<kFrom, kTo, 16>;
    default:
      return nullptr;
  }
}

LayerOps::Widen Find(std::size_t from_bytes, std::size_t to_bytes, std::size_t top_k) {
  if (to_bytes < 4) return nullptr;
  const std::size_t layer_bytes = from_bytes * top_k;
  if (from_bytes == 1) {
    return to_bytes == 8 ? FindOf<1, 8>(layer_bytes) : FindOf<1, 4>(layer_bytes);
  }
  return to_bytes == 8 ? FindOf<2, 8>(layer_bytes) : FindOf<2, 4>(layer_bytes);
}

WAYMARK_AVX2 void Stream(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 64) {
    const auto* const line = reinterpret_cast<const __m256i*>(from + at);
    const __m256i low = _mm256_loadu_si256(line);
    const __m256i high = _mm256_loadu_si256(line + 1);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at) + 1, high);
  }
}

}  // namespace

const LayerOps kLayerOpsAvx2 = {"avx2", &Find, &Stream};

}  // namespace waymark::internal

#endif
