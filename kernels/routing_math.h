// The arithmetic of routing, once for host and device, equal bit for bit on both.
//
// Everything is float32 additions, multiplications, fused multiply-adds and divisions, each
// correctly rounded on either side, in a written order. Sources that include this are compiled so
// that nothing is fused or approximated behind its back: -ffp-contract=off, nvcc -fmad=false.
// Internal to kernels.
#ifndef WAYMARK_KERNELS_ROUTING_MATH_H_
#define WAYMARK_KERNELS_ROUTING_MATH_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#define WAYMARK_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define WAYMARK_HOST_DEVICE inline
#endif

namespace waymark::kernels::routing {

WAYMARK_HOST_DEVICE std::uint32_t Bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return std::bit_cast<std::uint32_t>(value);
#endif
}
WAYMARK_HOST_DEVICE float FromBits(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

inline constexpr std::uint32_t kInfinityBits = 0x7f800000;

// ---- conversions: all exact but the last

WAYMARK_HOST_DEVICE float FromBfloat16(std::uint16_t bits) {
  return FromBits(std::uint32_t{bits} << 16);
}
WAYMARK_HOST_DEVICE float FromFloat16(std::uint16_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));
#else
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00) return FromBits(sign | kInfinityBits | (magnitude & 0x3ff) << 13);
  // 2^-24 is the unit of the subnormal ones.
  if (magnitude < 0x400) return FromBits(sign | Bits(static_cast<float>(magnitude) * 0x1p-24f));
  return FromBits(sign | ((magnitude << 13) + (std::uint32_t{127 - 15} << 23)));
#endif
}
// To nearest, ties to even. REQUIRES: not NaN.
WAYMARK_HOST_DEVICE std::uint16_t ToBfloat16(float value) {
  const std::uint32_t bits = Bits(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// ---- order

// What a logit or key counts as: NaN is -inf, -0 is +0.
WAYMARK_HOST_DEVICE float Canonical(float value) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
#if defined(__CUDA_ARCH__)
  return fmaxf(value, kLowest) + 0.0f;  // of a NaN and a number it takes the number
#else
  return value != value ? kLowest : value + 0.0f;
#endif
}
// Monotone: a < b exactly when KeyOf(a) < KeyOf(b). 0 is below every key. REQUIRES: canonical.
WAYMARK_HOST_DEVICE std::uint32_t KeyOf(float value) {
  const std::uint32_t bits = Bits(value);
  return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000u);
}
// The inverse. REQUIRES: a key, not 0.
WAYMARK_HOST_DEVICE float OfKey(std::uint32_t key) {
  return FromBits((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// ---- functions

// a * b + c, rounded once: one instruction, or a slow call on a processor that has none.
WAYMARK_HOST_DEVICE float Fma(float a, float b, float c) {
  return fmaf(a, b, c);
}

// e^x for x <= 0. Within 1 ulp; below e^-87 it is 0.
//
// x = n ln 2 + r with |r| <= (ln 2) / 2, so e^x = 2^n e^r. n comes out of the low bits of a sum so
// large that its ulp is 1; ln 2 is taken off in two parts, the first of which has few bits, so that
// n times it is exact (Cody and Waite); e^r is the polynomial of degree 6 with
// the least relative error there, 1.5e-9.
WAYMARK_HOST_DEVICE float ExpOfNonPositive(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  const float shifted = Fma(x, 1.44269504f, kRound);
  const float n = shifted - kRound;
  float r = Fma(n, -0.693145752f, x);
  r = Fma(n, -1.42860677e-6f, r);
  float p = 0.00138145406f;
  p = Fma(p, r, 0.00836874545f);
  p = Fma(p, r, 0.041668389f);
  p = Fma(p, r, 0.166665211f);
  p = Fma(p, r, 0.49999994f);
  p = Fma(p, r, 1.0f);
  p = Fma(p, r, 1.0f);
  const float scale = FromBits((Bits(shifted) << 23) + 0x3f800000u);
  return x < -87.0f ? 0.0f : p * scale;
}

// 1 / x for 1 <= x <= 2, correctly rounded.
//
// On a device these are the very steps that nvcc makes of 1 / x for such an x. What it puts around
// them for all the others is a branch, and keeps the reciprocals of a row from being computed side
// by side. A test with a device goes through every x.
WAYMARK_HOST_DEVICE float ReciprocalOfOneToTwo(float x) {
#if defined(__CUDA_ARCH__)
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return fmaf(r, -fmaf(x, r, -1.0f), r);
#else
  return 1.0f / x;
#endif
}

// 1 / (1 + e^-x), relative accuracy on both sides. sigmoid(-inf) = 0, sigmoid(+inf) = 1.
WAYMARK_HOST_DEVICE float Sigmoid(float x) {
  const float e = ExpOfNonPositive(-fabsf(x));
  const float r = ReciprocalOfOneToTwo(1.0f + e);
  return x < 0.0f ? e * r : r;
}

// e^(x - max), the terms of a softmax. The greatest is 1 even where it is infinite, so that no row
// gives NaN: a row of nothing but -inf has equal weights.
WAYMARK_HOST_DEVICE float SoftmaxTerm(float x, float max) {
  return x == max ? 1.0f : ExpOfNonPositive(x - max);
}

}  // namespace waymark::kernels::routing

#endif  // WAYMARK_KERNELS_ROUTING_MATH_H_
