#include "blockstore/distinct_ids.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace waymark {
namespace {

constexpr std::size_t kMostTopK = 64;

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's own headers make "undefined" vectors by initialising a variable with itself.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WAYMARK_AVX2 __attribute__((target("avx2")))
#define WAYMARK_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))

// Rows lie anywhere: they are asked for that long of_layer they are checked.
constexpr std::size_t kRowsAhead = 16;
constexpr std::size_t kLine = 64;

// Inline, because GCC 12 takes out calls of a function that does nothing else.
__attribute__((always_inline)) inline void Prefetch(std::span<const std::uint8_t* const> rows,
                                                    std::size_t i, std::size_t bytes) {
  if (i >= rows.size() || rows[i] == nullptr) return;
  for (std::size_t at = 0; at < bytes; at += kLine)
    __builtin_prefetch(rows[i] + at, 0, 3);
  __builtin_prefetch(rows[i] + bytes - 1, 0, 3);
}

// As many whole layers at a time as 64 bytes hold. Reads no byte behind `bytes`.
template <class Id>
WAYMARK_AVX512 bool CheckAvx512(const IdVectors& vectors, std::span<const std::uint8_t* const> rows,
                                std::size_t bytes, std::uint8_t* good) {
  constexpr bool kBytes = sizeof(Id) == 1;
  const __m512i most = kBytes ? _mm512_set1_epi8(static_cast<char>(vectors.most))
                              : _mm512_set1_epi16(static_cast<short>(vectors.most));
  const std::size_t pairs = vectors.pairs;
  const std::size_t step = vectors.bytes;
  // Behind the ids of a vector all are equal. The last vector ends with the row: a masked load of a
  // part takes several times as long as a load.
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - std::min(step, bytes) / sizeof(Id));
  const std::size_t last = bytes - std::min(step, bytes);
  const std::uint8_t* const rotations = vectors.rotations.data();
  bool all = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Prefetch(rows, i + kRowsAhead, bytes);
    const std::uint8_t* const ids = rows[i];
    // Of each place in the vectors: the largest id, and 0 if an id is there that is there twice.
    __m512i largest = _mm512_setzero_si512();
    __m512i difference = _mm512_set1_epi8(-1);
    for (std::size_t at = 0; ids != nullptr;) {
      const std::uint8_t* const from = ids + at;
      const __m512i word = at + 64 <= bytes ? _mm512_loadu_si512(from)
                           : kBytes         ? _mm512_maskz_loadu_epi8(mask, from)
                                    : _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask), from);
      largest = kBytes ? _mm512_max_epu8(largest, word) : _mm512_max_epu16(largest, word);
      for (std::size_t pair = 0; pair < pairs; ++pair) {
        const __m512i rotation = _mm512_loadu_si512(rotations + 64 * pair);
        const __m512i other = kBytes ? _mm512_permutexvar_epi8(rotation, word)
                                     : _mm512_permutexvar_epi16(rotation, word);
        const __m512i unlike = _mm512_xor_si512(word, other);
        difference =
            kBytes ? _mm512_min_epu8(difference, unlike) : _mm512_min_epu16(difference, unlike);
      }
      if (at == last) break;
      at = std::min(at + step, last);
    }
    const std::uint64_t bad = kBytes ? _mm512_cmpgt_epu8_mask(largest, most) |
                                           _mm512_testn_epi8_mask(difference, difference)
                                     : _mm512_cmpgt_epu16_mask(largest, most) |
                                           _mm512_testn_epi16_mask(difference, difference);
    good[i] = (bad & mask) == 0 ? 1 : 0;
    all = all && good[i] != 0;
  }
  return all;
}

// 32 bytes at a time, which whole layers fill. REQUIRES: bytes >= 32.
template <class Id>
WAYMARK_AVX2 bool CheckAvx2(const IdVectors& vectors, std::span<const std::uint8_t* const> rows,
                            std::size_t bytes, std::uint8_t* good) {
  constexpr bool kBytes = sizeof(Id) == 1;
  const __m256i most = kBytes ? _mm256_set1_epi8(static_cast<char>(vectors.most))
                              : _mm256_set1_epi16(static_cast<short>(vectors.most));
  const std::size_t pairs = vectors.pairs;
  const std::uint8_t* const rotations = vectors.rotations.data();
  bool all = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Prefetch(rows, i + kRowsAhead, bytes);
    const std::uint8_t* const ids = rows[i];
    __m256i bad = _mm256_setzero_si256();
    for (std::size_t at = 0; ids != nullptr;) {
      const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + at));
      for (std::size_t pair = 0; pair < pairs; ++pair) {
        const __m256i rotation =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rotations + 64 * pair));
        const __m256i other = _mm256_shuffle_epi8(word, rotation);
        bad = _mm256_or_si256(
            bad, kBytes ? _mm256_cmpeq_epi8(word, other) : _mm256_cmpeq_epi16(word, other));
      }
      // Saturated: above 0 where the id is above the largest.
      bad = _mm256_or_si256(bad,
                            kBytes ? _mm256_subs_epu8(word, most) : _mm256_subs_epu16(word, most));
      if (at + 32 == bytes) break;
      at = std::min(at + 32, bytes - 32);
    }
    good[i] = _mm256_testz_si256(bad, bad) != 0 ? 1 : 0;
    all = all && good[i] != 0;
  }
  return all;
}

#endif

}  // namespace

DistinctIds::DistinctIds(std::int32_t top_k, std::int32_t num_experts)
    : top_k_(top_k), num_experts_(num_experts) {
#if defined(__x86_64__)
  const bool bytes = num_experts <= 256;
  const std::size_t ids = static_cast<std::size_t>(top_k);
  const std::size_t layer_bytes = ids * (bytes ? 1 : 2);
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
                      layer_bytes <= 64;
  const bool avx2 = __builtin_cpu_supports("avx2") && (top_k == 2 || top_k == 4 || top_k == 8);
  if (!avx512 && !avx2) return;
  vectors_.most = static_cast<std::uint32_t>(num_experts) - 1;
  vectors_.bytes = 64 / layer_bytes * layer_bytes;
  vectors_.pairs = ids / 2;
  vectors_.rotations.resize(64 * vectors_.pairs);
  for (std::size_t i = 0; i < 64 * vectors_.pairs; ++i) {
    const std::size_t distance = i / 64 + 1;
    // Of bytes in a vector, or in each 16 bytes of it; of ids in a vector; of bytes of these.
    const std::size_t width = avx512 && !bytes ? 2 : 1;
    const std::size_t at = i % 64 / width % (avx512 ? 64 : 16);
    const std::size_t ring = avx512 ? ids : layer_bytes;
    const std::size_t shift = avx512 || bytes ? distance : 2 * distance;
    const std::size_t from = at / ring * ring + (at % ring + shift) % ring;
    vectors_.rotations[i] = static_cast<std::uint8_t>(i % width == 0 ? from % 64 : 0);
  }
  if (avx512) {
    check_ = bytes ? &CheckAvx512<std::uint8_t> : &CheckAvx512<std::uint16_t>;
  } else {
    check_ = bytes ? &CheckAvx2<std::uint8_t> : &CheckAvx2<std::uint16_t>;
    least_bytes_ = 32;
  }
#endif
}

template <class Id>
std::int32_t DistinctIds::FirstBadOf(const std::uint8_t* ids, std::int32_t layers) const {
  const auto top_k = static_cast<std::size_t>(top_k_);
  std::array<Id, kMostTopK> of_layer;
  for (std::int32_t layer = 0; layer < layers; ++layer, ids += top_k * sizeof(Id)) {
    std::memcpy(of_layer.data(), ids, top_k * sizeof(Id));
    bool bad = false;
    for (std::size_t k = 0; k < top_k; ++k) {
      bad |= of_layer[k] >= num_experts_;
      for (std::size_t other = 0; other < k; ++other)
        bad |= of_layer[other] == of_layer[k];
    }
    if (bad) return layer;
  }
  return -1;
}

std::size_t DistinctIds::BytesOf(std::int32_t layers) const {
  return static_cast<std::size_t>(layers) * static_cast<std::size_t>(top_k_) *
         (num_experts_ <= 256 ? 1 : 2);
}

bool DistinctIds::CheckRows(std::span<const std::uint8_t* const> rows, std::int32_t layers,
                            std::span<std::uint8_t> good) const {
  const std::size_t bytes = BytesOf(layers);
  if (check_ != nullptr && bytes >= least_bytes_) return check_(vectors_, rows, bytes, good.data());
  bool all = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    good[i] = rows[i] == nullptr || FirstBad(rows[i], layers) < 0 ? 1 : 0;
    all = all && good[i] != 0;
  }
  return all;
}

std::int32_t DistinctIds::FirstBad(const std::uint8_t* ids, std::int32_t layers) const {
  const std::size_t bytes = BytesOf(layers);
  std::uint8_t good = 0;
  if (check_ != nullptr && bytes >= least_bytes_ &&
      check_(vectors_, std::span(&ids, 1), bytes, &good)) {
    return -1;
  }
  return num_experts_ > 256 ? FirstBadOf<std::uint16_t>(ids, layers)
                            : FirstBadOf<std::uint8_t>(ids, layers);
}

}  // namespace waymark
