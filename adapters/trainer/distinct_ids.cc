#include "adapters/trainer/distinct_ids.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace waymark {
namespace {

constexpr std::uint64_t kLow = 0x0101010101010101u;
constexpr std::uint64_t kHigh = 0x8080808080808080u;

// Whether one of kTopK <= 8 bytes at `ids` is not below `num_experts` <= 256, or two are equal.
template <int kTopK>
bool BadBytes(const std::uint8_t* ids, std::uint32_t num_experts) {
  constexpr std::uint64_t kAll =
      kTopK == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * (kTopK % 8))) - 1;
  std::uint64_t word = 0;
  std::memcpy(&word, ids, kTopK);
  std::uint64_t bad = 0;
  for (int distance = 1; distance < kTopK; ++distance) {
    // Bytes i and i + distance differ by 0: the lowest byte that is 0 gets its high bit, and none
    // below it does.
    const std::uint64_t difference = word ^ (word >> (8 * distance));
    bad |= (difference - kLow) & ~difference & (kAll >> (8 * distance));
  }
  // The high bit of a byte: whether its low 7 bits are at least those of num_experts.
  const std::uint64_t sums =
      (word & ~kHigh) + kLow * ((num_experts <= 128 ? 128 : 256) - num_experts);
  if (num_experts <= 128) {
    bad |= (word | sums) & kAll;
  } else {
    bad |= word & sums & kAll;
  }
  return (bad & kHigh) != 0;
}

template <int kTopK>
std::int32_t FirstBadBytes(const std::uint8_t* ids, std::int32_t layers,
                           std::uint32_t num_experts) {
  for (std::int32_t layer = 0; layer < layers; ++layer, ids += kTopK) {
    if (BadBytes<kTopK>(ids, num_experts)) return layer;
  }
  return -1;
}

#if defined(__x86_64__)

#define WAYMARK_AVX2 __attribute__((target("avx2")))

// Byte i + distance of the ring of `ring` bytes that byte i is in, as a shuffle of 16 bytes.
WAYMARK_AVX2 __m256i Rotation(int ring, int distance) {
  alignas(32) std::uint8_t from[32];
  for (int i = 0; i < 32; ++i) {
    const int at = i % 16;
    from[i] = static_cast<std::uint8_t>(at / ring * ring + (at + distance) % ring);
  }
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

// Whether every id is below num_experts and no two of a layer are equal: of layers of kIds ids of
// Id, 32 bytes at a time, which whole layers fill. REQUIRES: bytes >= 32.
template <class Id, int kIds>
WAYMARK_AVX2 bool AllGood(const std::uint8_t* ids, std::size_t bytes, std::uint32_t num_experts) {
  constexpr int kRing = kIds * sizeof(Id);
  __m256i rotations[kIds / 2];  // every pair of a ring is at most that far apart
  for (int i = 0; i < kIds / 2; ++i)
    rotations[i] = Rotation(kRing, (i + 1) * static_cast<int>(sizeof(Id)));
  const auto largest = static_cast<Id>(num_experts - 1);
  const __m256i most = sizeof(Id) == 1 ? _mm256_set1_epi8(static_cast<char>(largest))
                                       : _mm256_set1_epi16(static_cast<short>(largest));
  __m256i bad = _mm256_setzero_si256();
  for (std::size_t at = 0;;) {
    const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + at));
    for (const __m256i& rotation : rotations) {
      const __m256i other = _mm256_shuffle_epi8(word, rotation);
      bad = _mm256_or_si256(
          bad, sizeof(Id) == 1 ? _mm256_cmpeq_epi8(word, other) : _mm256_cmpeq_epi16(word, other));
    }
    // Saturated: above 0 where the id is above the largest.
    bad = _mm256_or_si256(
        bad, sizeof(Id) == 1 ? _mm256_subs_epu8(word, most) : _mm256_subs_epu16(word, most));
    if (at + 32 == bytes) break;
    at = std::min(at + 32, bytes - 32);
  }
  return _mm256_testz_si256(bad, bad) != 0;
}

bool HasAvx2() {
  static const bool has = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") != 0;
  }();
  return has;
}

#endif

}  // namespace

DistinctIds::DistinctIds(std::int32_t top_k, std::int32_t num_experts)
    : top_k_(top_k), num_experts_(num_experts), seen_(static_cast<std::size_t>(num_experts)) {
#if defined(__x86_64__)
  if (!HasAvx2()) return;
  if (num_experts <= 256) {
    all_good_ = top_k == 2   ? &AllGood<std::uint8_t, 2>
                : top_k == 4 ? &AllGood<std::uint8_t, 4>
                : top_k == 8 ? &AllGood<std::uint8_t, 8>
                             : nullptr;
  } else {
    all_good_ = top_k == 2   ? &AllGood<std::uint16_t, 2>
                : top_k == 4 ? &AllGood<std::uint16_t, 4>
                : top_k == 8 ? &AllGood<std::uint16_t, 8>
                             : nullptr;
  }
#endif
}

template <class Id>
std::int32_t DistinctIds::FirstBadOf(const std::uint8_t* ids, std::int32_t layers) {
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    if (++turn_ == 0) {  // wrapped
      std::fill(seen_.begin(), seen_.end(), 0);
      turn_ = 1;
    }
    for (std::int32_t k = 0; k < top_k_; ++k, ids += sizeof(Id)) {
      Id id;
      std::memcpy(&id, ids, sizeof(id));
      if (id >= num_experts_ || seen_[id] == turn_) return layer;
      seen_[id] = turn_;
    }
  }
  return -1;
}

std::int32_t DistinctIds::FirstBad(const std::uint8_t* ids, std::int32_t layers) {
  const auto experts = static_cast<std::uint32_t>(num_experts_);
  const std::size_t bytes = static_cast<std::size_t>(layers) * static_cast<std::size_t>(top_k_) *
                            (experts <= 256 ? 1 : 2);
  if (all_good_ != nullptr && bytes >= 32 && all_good_(ids, bytes, experts)) return -1;
  if (experts > 256) return FirstBadOf<std::uint16_t>(ids, layers);
  switch (top_k_) {
    case 1:
      return FirstBadBytes<1>(ids, layers, experts);
    case 2:
      return FirstBadBytes<2>(ids, layers, experts);
    case 4:
      return FirstBadBytes<4>(ids, layers, experts);
    case 6:
      return FirstBadBytes<6>(ids, layers, experts);
    case 8:
      return FirstBadBytes<8>(ids, layers, experts);
    default:
      return FirstBadOf<std::uint8_t>(ids, layers);
  }
}

}  // namespace waymark
