// Routing with AVX2 and FMA: vectors of 8 and what can be done with them. The rest is
// routing_simd.inc.
#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
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

#define WAYMARK_SIMD_TARGET target("avx2,fma,f16c,popcnt")
#define WAYMARK_SIMD __attribute__((WAYMARK_SIMD_TARGET))
#define WAYMARK_SIMD_INLINE __attribute__((WAYMARK_SIMD_TARGET, always_inline)) inline

namespace waymark::kernels::internal {
namespace {

inline constexpr std::int32_t kLanes = 8;
using F = __m256;
using I = __m256i;
using Mask = __m256i;  // all ones or all zeros in each lane

// Of every set of lanes: which these are, ascending.
constexpr auto kLanesOfBits = [] {
  std::array<std::array<std::uint8_t, 8>, 256> lanes{};
  for (std::size_t bits = 0; bits < 256; ++bits) {
    std::size_t n = 0;
    for (std::uint8_t lane = 0; lane < 8; ++lane) {
      if ((bits >> lane & 1) != 0) lanes[bits][n++] = lane;
    }
  }
  return lanes;
}();

WAYMARK_SIMD_INLINE F Set(float value) {
  return _mm256_set1_ps(value);
}
WAYMARK_SIMD_INLINE I Set(std::int32_t value) {
  return _mm256_set1_epi32(value);
}
WAYMARK_SIMD_INLINE I Iota() {
  return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}
WAYMARK_SIMD_INLINE I AsI(F value) {
  return _mm256_castps_si256(value);
}
WAYMARK_SIMD_INLINE F AsF(I value) {
  return _mm256_castsi256_ps(value);
}

WAYMARK_SIMD_INLINE F Add(F a, F b) {
  return _mm256_add_ps(a, b);
}
WAYMARK_SIMD_INLINE F Sub(F a, F b) {
  return _mm256_sub_ps(a, b);
}
WAYMARK_SIMD_INLINE F Mul(F a, F b) {
  return _mm256_mul_ps(a, b);
}
WAYMARK_SIMD_INLINE F Div(F a, F b) {
  return _mm256_div_ps(a, b);
}
WAYMARK_SIMD_INLINE F Fma(F a, F b, F c) {
  return _mm256_fmadd_ps(a, b, c);
}
WAYMARK_SIMD_INLINE F Max(F a, F b) {
  return _mm256_max_ps(a, b);
}

WAYMARK_SIMD_INLINE I Add(I a, I b) {
  return _mm256_add_epi32(a, b);
}
WAYMARK_SIMD_INLINE I Max(I a, I b) {
  return _mm256_max_epi32(a, b);
}
WAYMARK_SIMD_INLINE I Min(I a, I b) {
  return _mm256_min_epi32(a, b);
}
WAYMARK_SIMD_INLINE I Or(I a, I b) {
  return _mm256_or_si256(a, b);
}
WAYMARK_SIMD_INLINE I And(I a, I b) {
  return _mm256_and_si256(a, b);
}
WAYMARK_SIMD_INLINE I Xor(I a, I b) {
  return _mm256_xor_si256(a, b);
}
template <int kBits>
WAYMARK_SIMD_INLINE I ShiftLeft(I a) {
  return _mm256_slli_epi32(a, kBits);
}
template <int kBits>
WAYMARK_SIMD_INLINE I ShiftRight(I a) {
  return _mm256_srli_epi32(a, kBits);
}
// All ones where negative.
WAYMARK_SIMD_INLINE I SignOf(I a) {
  return _mm256_srai_epi32(a, 31);
}

WAYMARK_SIMD_INLINE Mask Less(F a, F b) {
  return AsI(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
WAYMARK_SIMD_INLINE Mask Equal(F a, F b) {
  return AsI(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}
WAYMARK_SIMD_INLINE Mask IsNan(F a) {
  return AsI(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
WAYMARK_SIMD_INLINE Mask Greater(I a, I b) {
  return _mm256_cmpgt_epi32(a, b);
}
WAYMARK_SIMD_INLINE Mask Equal(I a, I b) {
  return _mm256_cmpeq_epi32(a, b);
}
// Lanes [0, n).
WAYMARK_SIMD_INLINE Mask FirstLanes(std::int32_t n) {
  return Greater(Set(n), Iota());
}
WAYMARK_SIMD_INLINE std::uint32_t Bits(Mask mask) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(AsF(mask)));
}
WAYMARK_SIMD_INLINE F Select(Mask mask, F yes, F no) {
  return _mm256_blendv_ps(no, yes, AsF(mask));
}
WAYMARK_SIMD_INLINE I Select(Mask mask, I yes, I no) {
  return _mm256_blendv_epi8(no, yes, mask);
}
// a + 1 where the mask is set.
WAYMARK_SIMD_INLINE I CountIf(Mask mask, I a) {
  return _mm256_sub_epi32(a, mask);
}

WAYMARK_SIMD_INLINE float FirstOf(F a) {
  return _mm256_cvtss_f32(a);
}
WAYMARK_SIMD_INLINE std::int32_t GreatestOf(I a) {
  __m128i most = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1));
  return _mm_cvtsi128_si32(most);
}
WAYMARK_SIMD_INLINE std::int32_t LeastOf(I a) {
  return ~GreatestOf(Xor(a, Set(-1)));
}

// Memory need not be aligned. First: the first n elements, the others are not touched, and are 0 in
// what is loaded.
WAYMARK_SIMD_INLINE F Load(const float* from) {
  return _mm256_loadu_ps(from);
}
WAYMARK_SIMD_INLINE F LoadFirst(const float* from, std::int32_t n) {
  return _mm256_maskload_ps(from, FirstLanes(n));
}
WAYMARK_SIMD_INLINE I Load(const std::int32_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
// 16-bit elements, into the lower halves.
WAYMARK_SIMD_INLINE __m128i Load16(const std::uint16_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
WAYMARK_SIMD_INLINE __m128i Load16First(const std::uint16_t* from, std::int32_t n) {
  alignas(16) std::uint16_t elements[kLanes] = {};
  for (std::int32_t i = 0; i < kLanes; ++i) {
    if (i < n) elements[i] = from[i];
  }
  return Load16(elements);
}
WAYMARK_SIMD_INLINE I Widen(__m128i bits) {
  return _mm256_cvtepu16_epi32(bits);
}
WAYMARK_SIMD_INLINE F WidenFloat16(__m128i bits) {
  return _mm256_cvtph_ps(bits);
}

WAYMARK_SIMD_INLINE void Store(float* to, F value) {
  _mm256_storeu_ps(to, value);
}
WAYMARK_SIMD_INLINE void Store(std::int32_t* to, I value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}
WAYMARK_SIMD_INLINE void StoreFirst(float* to, F value, std::int32_t n) {
  n >= kLanes ? Store(to, value) : _mm256_maskstore_ps(to, FirstLanes(n), value);
}
WAYMARK_SIMD_INLINE void StoreFirst(std::int32_t* to, I value, std::int32_t n) {
  n >= kLanes ? Store(to, value) : _mm256_maskstore_epi32(to, FirstLanes(n), value);
}
// The lower halves, which must be all there is to the lanes: 0 ... 65535.
WAYMARK_SIMD_INLINE void Store16First(void* to, I value, std::int32_t n) {
  const __m128i narrow =
      _mm_packus_epi32(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
  if (n >= kLanes) return _mm_storeu_si128(static_cast<__m128i*>(to), narrow);
  alignas(16) std::uint16_t elements[kLanes];
  _mm_store_si128(reinterpret_cast<__m128i*>(elements), narrow);
  for (std::int32_t i = 0; i < n; ++i)
    static_cast<std::uint16_t*>(to)[i] = elements[i];
}
// The lanes of `mask`, without gaps. Writes a whole vector.
WAYMARK_SIMD_INLINE void StoreOnly(std::int32_t* to, Mask mask, I value) {
  const auto* lanes = reinterpret_cast<const __m128i*>(kLanesOfBits[Bits(mask)].data());
  Store(to, _mm256_permutevar8x32_epi32(value, _mm256_cvtepu8_epi32(_mm_loadl_epi64(lanes))));
}

}  // namespace
}  // namespace waymark::kernels::internal

#include "kernels/routing_simd.inc"

namespace waymark::kernels::internal {

void RouteRowsAvx2(const RoutingConfig& config, const RoutingTensors& tensors) {
  RouteRows(config, tensors);
}

}  // namespace waymark::kernels::internal

#endif  // defined(__x86_64__)
