// SetCode with AVX-512: the vector operations, on 16 lanes; set_code_simd.inc has the algorithm.
// Compiled for the baseline processor: only the functions marked WAYMARK_SIMD use AVX-512.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "blockstore/wire/set_code_tile.h"

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's headers make "undefined" vectors by initialising a variable with itself.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WAYMARK_SIMD_TARGET target("avx512f,avx512bw,avx512vl,bmi,popcnt")
#define WAYMARK_SIMD __attribute__((WAYMARK_SIMD_TARGET))
#define WAYMARK_SIMD_INLINE __attribute__((WAYMARK_SIMD_TARGET, always_inline)) inline

namespace waymark::internal {
namespace {

inline constexpr std::size_t kLanes = 16;
inline constexpr std::uint32_t kAllLanes = 0xffff;
using V = __m512i;
using Mask = __mmask16;

WAYMARK_SIMD_INLINE V Load(const std::uint32_t* at) {
  return _mm512_loadu_si512(at);
}
WAYMARK_SIMD_INLINE V Load(const std::int32_t* at) {
  return _mm512_loadu_si512(at);
}
WAYMARK_SIMD_INLINE void Store(std::uint32_t* at, V value) {
  _mm512_storeu_si512(at, value);
}
WAYMARK_SIMD_INLINE V Set(std::int32_t value) {
  return _mm512_set1_epi32(value);
}
WAYMARK_SIMD_INLINE V And(V a, V b) {
  return _mm512_and_si512(a, b);
}
WAYMARK_SIMD_INLINE V Or(V a, V b) {
  return _mm512_or_si512(a, b);
}
WAYMARK_SIMD_INLINE V Add(V a, V b) {
  return _mm512_add_epi32(a, b);
}
WAYMARK_SIMD_INLINE V Sub(V a, V b) {
  return _mm512_sub_epi32(a, b);
}
WAYMARK_SIMD_INLINE V Min(V a, V b) {
  return _mm512_min_epi32(a, b);
}
WAYMARK_SIMD_INLINE V Max(V a, V b) {
  return _mm512_max_epi32(a, b);
}
WAYMARK_SIMD_INLINE V ShiftLeft(V a, std::uint32_t count) {
  return _mm512_sll_epi32(a, _mm_cvtsi32_si128(static_cast<int>(count)));
}
WAYMARK_SIMD_INLINE V ShiftRight(V a, std::uint32_t count) {
  return _mm512_srl_epi32(a, _mm_cvtsi32_si128(static_cast<int>(count)));
}
WAYMARK_SIMD_INLINE V OneAt(V n) {
  return _mm512_sllv_epi32(Set(1), n);
}
WAYMARK_SIMD_INLINE Mask Less(V a, V b) {
  return _mm512_cmplt_epi32_mask(a, b);
}
WAYMARK_SIMD_INLINE Mask Both(Mask a, Mask b) {
  return static_cast<Mask>(a & b);
}
WAYMARK_SIMD_INLINE Mask AllTrue() {
  return 0xffff;
}
// In assembly because of a bug of g++ 12. It omits the zero-extension of a comparison's mask, since
// the instruction clears the rest of the mask register; but if it spills the mask, it writes 16
// bits (kmovw) and reads 64. From -O1 on this function returns garbage above bit 15:
//
//   unsigned long F(__m512i a, __m512i b, bool other) {
//     const unsigned long mask = _mm512_cmplt_epi32_mask(a, b);
//     if (other) asm volatile("" ::: "rax", ... all the others, "r15", "k0", ... "k7");
//     return mask;
//   }
//
// A call has the same effect, e.g. those of ThreadSanitizer before every load; _cvtmask16_u32 does
// not help.
WAYMARK_SIMD_INLINE std::uint32_t Bits(Mask mask) {
  std::uint32_t bits;
  asm("kmovw %1, %0" : "=r"(bits) : "k"(mask));
  return bits;
}
template <std::uint32_t kLevels>
WAYMARK_SIMD_INLINE V Lookup(const std::int32_t* table, V i) {
  if constexpr (kLevels == 4) return _mm512_permutexvar_epi32(i, Load(table));
  return _mm512_permutex2var_epi32(Load(table), i, Load(table + 16));
}
template <std::uint32_t kLevel>
WAYMARK_SIMD_INLINE V Child(const std::int32_t* tree, V node, V rank) {
  V value;
  if constexpr (kLevel == 0) {
    value = Set(tree[1]);
  } else {
    value = _mm512_permutexvar_epi32(node, Load(kLevel == 4 ? tree + 16 : tree));
  }
  const V first = Add(node, node);
  return _mm512_mask_add_epi32(first, _mm512_cmplt_epi32_mask(value, rank), first, Set(1));
}

#include "blockstore/wire/set_code_simd.inc"

}  // namespace

const SetCodeBackend kSetCodeAvx512 = {"avx512", Encode, Decode};

}  // namespace waymark::internal

#endif  // defined(__x86_64__)
