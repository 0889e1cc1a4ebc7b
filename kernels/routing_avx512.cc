// Routing with AVX-512: vectors of 16 and what can be done with them. The rest is routing_simd.inc.
#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/routing_ops.h"
#include "kernels/routing_policy.h"

#if defined(__GNUC__) && !defined(__clang__)
// The compiler's own headers make "undefined" vectors by initialising a variable with itself.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define WAYMARK_SIMD_TARGET target("avx512f,avx512bw,avx512vl,avx2,fma,f16c,popcnt")
#define WAYMARK_SIMD __attribute__((WAYMARK_SIMD_TARGET))
#define WAYMARK_SIMD_INLINE __attribute__((WAYMARK_SIMD_TARGET, always_inline)) inline

namespace waymark::kernels::internal {
namespace {

inline constexpr std::int32_t kLanes = 16;
using F = __m512;
using I = __m512i;
using Mask = __mmask16;

WAYMARK_SIMD_INLINE F Set(float value) {
  return _mm512_set1_ps(value);
}
WAYMARK_SIMD_INLINE I Set(std::int32_t value) {
  return _mm512_set1_epi32(value);
}
WAYMARK_SIMD_INLINE I Iota() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
WAYMARK_SIMD_INLINE I AsI(F value) {
  return _mm512_castps_si512(value);
}
WAYMARK_SIMD_INLINE F AsF(I value) {
  return _mm512_castsi512_ps(value);
}

WAYMARK_SIMD_INLINE F Add(F a, F b) {
  return _mm512_add_ps(a, b);
}
WAYMARK_SIMD_INLINE F Sub(F a, F b) {
  return _mm512_sub_ps(a, b);
}
WAYMARK_SIMD_INLINE F Mul(F a, F b) {
  return _mm512_mul_ps(a, b);
}
WAYMARK_SIMD_INLINE F Div(F a, F b) {
  return _mm512_div_ps(a, b);
}
WAYMARK_SIMD_INLINE F Fma(F a, F b, F c) {
  return _mm512_fmadd_ps(a, b, c);
}
WAYMARK_SIMD_INLINE F Max(F a, F b) {
  return _mm512_max_ps(a, b);
}

WAYMARK_SIMD_INLINE I Add(I a, I b) {
  return _mm512_add_epi32(a, b);
}
WAYMARK_SIMD_INLINE I Max(I a, I b) {
  return _mm512_max_epi32(a, b);
}
WAYMARK_SIMD_INLINE I Min(I a, I b) {
  return _mm512_min_epi32(a, b);
}
WAYMARK_SIMD_INLINE I Or(I a, I b) {
  return _mm512_or_si512(a, b);
}
WAYMARK_SIMD_INLINE I And(I a, I b) {
  return _mm512_and_si512(a, b);
}
WAYMARK_SIMD_INLINE I Xor(I a, I b) {
  return _mm512_xor_si512(a, b);
}
template <int kBits>
WAYMARK_SIMD_INLINE I ShiftLeft(I a) {
  return _mm512_slli_epi32(a, kBits);
}
template <int kBits>
WAYMARK_SIMD_INLINE I ShiftRight(I a) {
  return _mm512_srli_epi32(a, kBits);
}
// All ones where negative.
WAYMARK_SIMD_INLINE I SignOf(I a) {
  return _mm512_srai_epi32(a, 31);
}

WAYMARK_SIMD_INLINE Mask Less(F a, F b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
WAYMARK_SIMD_INLINE Mask Equal(F a, F b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
WAYMARK_SIMD_INLINE Mask IsNan(F a) {
  return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
WAYMARK_SIMD_INLINE Mask Greater(I a, I b) {
  return _mm512_cmpgt_epi32_mask(a, b);
}
WAYMARK_SIMD_INLINE Mask Equal(I a, I b) {
  return _mm512_cmpeq_epi32_mask(a, b);
}
// Lanes [0, n).
WAYMARK_SIMD_INLINE Mask FirstLanes(std::int32_t n) {
  return Greater(Set(n), Iota());
}
// In assembly because of g++ 12, which may spill the mask of a comparison as 16 bits and read it
// again as more.
WAYMARK_SIMD_INLINE std::uint32_t Bits(Mask mask) {
  std::uint32_t bits;
  asm("kmovw %1, %0" : "=r"(bits) : "k"(mask));
  return bits;
}
WAYMARK_SIMD_INLINE F Select(Mask mask, F yes, F no) {
  return _mm512_mask_blend_ps(mask, no, yes);
}
WAYMARK_SIMD_INLINE I Select(Mask mask, I yes, I no) {
  return _mm512_mask_blend_epi32(mask, no, yes);
}
// a + 1 where the mask is set.
WAYMARK_SIMD_INLINE I CountIf(Mask mask, I a) {
  return _mm512_mask_add_epi32(a, mask, a, Set(1));
}

WAYMARK_SIMD_INLINE float FirstOf(F a) {
  return _mm512_cvtss_f32(a);
}
WAYMARK_SIMD_INLINE std::int32_t GreatestOf(I a) {
  return _mm512_reduce_max_epi32(a);
}
WAYMARK_SIMD_INLINE std::int32_t LeastOf(I a) {
  return _mm512_reduce_min_epi32(a);
}

// Memory need not be aligned. First: the first n elements, the others are not touched, and are 0 in
// what is loaded.
WAYMARK_SIMD_INLINE F Load(const float* from) {
  return _mm512_loadu_ps(from);
}
WAYMARK_SIMD_INLINE F LoadFirst(const float* from, std::int32_t n) {
  return _mm512_maskz_loadu_ps(FirstLanes(n), from);
}
WAYMARK_SIMD_INLINE I Load(const std::int32_t* from) {
  return _mm512_loadu_si512(from);
}
// 16-bit elements, into the lower halves.
WAYMARK_SIMD_INLINE __m256i Load16(const std::uint16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
WAYMARK_SIMD_INLINE __m256i Load16First(const std::uint16_t* from, std::int32_t n) {
  return _mm256_maskz_loadu_epi16(FirstLanes(n), from);
}
WAYMARK_SIMD_INLINE I Widen(__m256i bits) {
  return _mm512_cvtepu16_epi32(bits);
}
WAYMARK_SIMD_INLINE F WidenFloat16(__m256i bits) {
  return _mm512_cvtph_ps(bits);
}

WAYMARK_SIMD_INLINE void Store(float* to, F value) {
  _mm512_storeu_ps(to, value);
}
WAYMARK_SIMD_INLINE void Store(std::int32_t* to, I value) {
  _mm512_storeu_si512(to, value);
}
WAYMARK_SIMD_INLINE void StoreFirst(float* to, F value, std::int32_t n) {
  _mm512_mask_storeu_ps(to, FirstLanes(n), value);
}
WAYMARK_SIMD_INLINE void StoreFirst(std::int32_t* to, I value, std::int32_t n) {
  _mm512_mask_storeu_epi32(to, FirstLanes(n), value);
}
// The lower halves, which must be all there is to the lanes: 0 ... 65535.
WAYMARK_SIMD_INLINE void Store16First(void* to, I value, std::int32_t n) {
  _mm256_mask_storeu_epi16(to, FirstLanes(n), _mm512_cvtepi32_epi16(value));
}
// The lanes of `mask`, without gaps. Writes a whole vector.
WAYMARK_SIMD_INLINE void StoreOnly(std::int32_t* to, Mask mask, I value) {
  Store(to, _mm512_maskz_compress_epi32(mask, value));
}

}  // namespace
}  // namespace waymark::kernels::internal

#include "kernels/routing_simd.inc"

namespace waymark::kernels::internal {

void RouteRowsAvx512(const RoutingConfig& config, const RoutingTensors& tensors) {
  RouteRows(config, tensors);
}

}  // namespace waymark::kernels::internal

#endif  // defined(__x86_64__)
