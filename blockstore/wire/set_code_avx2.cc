// SetCode with AVX2: the vector operations, on 8 lanes; set_code_simd.inc has the algorithm.
// Compiled for the baseline processor: only the functions marked WAYMARK_SIMD use AVX2.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "blockstore/wire/set_code_tile.h"

#define WAYMARK_SIMD __attribute__((target("avx2,bmi,popcnt")))
#define WAYMARK_SIMD_INLINE __attribute__((target("avx2,bmi,popcnt"), always_inline)) inline

namespace waymark::internal {
namespace {

inline constexpr std::size_t kLanes = 8;
inline constexpr std::uint32_t kAllLanes = 0xff;
using V = __m256i;
using Mask = __m256i;  // all ones or all zeros in each lane

WAYMARK_SIMD_INLINE V Load(const std::uint32_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
WAYMARK_SIMD_INLINE V Load(const std::int32_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
WAYMARK_SIMD_INLINE void Store(std::uint32_t* at, V value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), value);
}
WAYMARK_SIMD_INLINE V Set(std::int32_t value) {
  return _mm256_set1_epi32(value);
}
WAYMARK_SIMD_INLINE V And(V a, V b) {
  return _mm256_and_si256(a, b);
}
WAYMARK_SIMD_INLINE V Or(V a, V b) {
  return _mm256_or_si256(a, b);
}
WAYMARK_SIMD_INLINE V Add(V a, V b) {
  return _mm256_add_epi32(a, b);
}
WAYMARK_SIMD_INLINE V Sub(V a, V b) {
  return _mm256_sub_epi32(a, b);
}
WAYMARK_SIMD_INLINE V Min(V a, V b) {
  return _mm256_min_epi32(a, b);
}
WAYMARK_SIMD_INLINE V Max(V a, V b) {
  return _mm256_max_epi32(a, b);
}
WAYMARK_SIMD_INLINE V ShiftLeft(V a, std::uint32_t count) {
  return _mm256_sll_epi32(a, _mm_cvtsi32_si128(static_cast<int>(count)));
}
WAYMARK_SIMD_INLINE V ShiftRight(V a, std::uint32_t count) {
  return _mm256_srl_epi32(a, _mm_cvtsi32_si128(static_cast<int>(count)));
}
WAYMARK_SIMD_INLINE V OneAt(V n) {
  return _mm256_sllv_epi32(Set(1), n);
}
WAYMARK_SIMD_INLINE Mask Less(V a, V b) {
  return _mm256_cmpgt_epi32(b, a);
}
WAYMARK_SIMD_INLINE Mask Both(Mask a, Mask b) {
  return _mm256_and_si256(a, b);
}
WAYMARK_SIMD_INLINE Mask AllTrue() {
  return Set(-1);
}
WAYMARK_SIMD_INLINE std::uint32_t Bits(Mask mask) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
}
// In each lane b if bit `bit` of i is set, else a. The blend tests the sign bit.
WAYMARK_SIMD_INLINE V Choose(V a, V b, V i, int bit) {
  return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b),
                                              _mm256_castsi256_ps(_mm256_slli_epi32(i, 31 - bit))));
}
template <std::uint32_t kLevels>
WAYMARK_SIMD_INLINE V Lookup(const std::int32_t* table, V i) {
  const V low = Choose(_mm256_permutevar8x32_epi32(Load(table), i),
                       _mm256_permutevar8x32_epi32(Load(table + 8), i), i, 3);
  if constexpr (kLevels == 4) return low;
  const V high = Choose(_mm256_permutevar8x32_epi32(Load(table + 16), i),
                        _mm256_permutevar8x32_epi32(Load(table + 24), i), i, 3);
  return Choose(low, high, i, 4);
}
template <std::uint32_t kLevel>
WAYMARK_SIMD_INLINE V Child(const std::int32_t* tree, V node, V rank) {
  V value;
  if constexpr (kLevel == 0) {
    value = Set(tree[1]);
  } else if constexpr (kLevel < 3) {
    value = _mm256_permutevar8x32_epi32(Load(tree), node);
  } else if constexpr (kLevel == 3) {
    value = _mm256_permutevar8x32_epi32(Load(tree + 8), node);
  } else {
    value = Choose(_mm256_permutevar8x32_epi32(Load(tree + 16), node),
                   _mm256_permutevar8x32_epi32(Load(tree + 24), node), node, 3);
  }
  // The comparison is -1 where it holds.
  return Sub(Add(node, node), _mm256_cmpgt_epi32(rank, value));
}

#include "blockstore/wire/set_code_simd.inc"

}  // namespace

const SetCodeBackend kSetCodeAvx2 = {"avx2", Encode, Decode};

}  // namespace waymark::internal

#endif  // defined(__x86_64__)
