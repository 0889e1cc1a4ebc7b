// The arithmetic of routing on a device, value by value against the host's.
#include "kernels/routing_math.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/gpu/cuda_support.h"

namespace waymark::kernels {
namespace {

enum class Function { kReciprocal, kExp, kSigmoid, kCanonical, kFloat16, kBfloat16 };

WAYMARK_HOST_DEVICE std::uint32_t Apply(Function function, std::uint32_t bits) {
  const float x = routing::FromBits(bits);
  switch (function) {
    case Function::kReciprocal:
      return routing::Bits(routing::ReciprocalOfOneToTwo(x));
    case Function::kExp:
      return routing::Bits(routing::ExpOfNonPositive(x));
    case Function::kSigmoid:
      return routing::Bits(routing::Sigmoid(x));
    case Function::kCanonical:
      return routing::KeyOf(routing::Canonical(x));
    case Function::kFloat16:
      return routing::Bits(
          routing::Canonical(routing::FromFloat16(static_cast<std::uint16_t>(bits))));
    case Function::kBfloat16:
      return routing::ToBfloat16(routing::Canonical(x));
  }
  return 0;
}

__global__ void ApplyToRange(Function function, std::uint32_t first, std::uint32_t step,
                             std::uint32_t count, std::uint32_t* out) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = Apply(function, first + i * step);
}

class RoutingMathOnCuda : public CudaTest {
 protected:
  // Values with the bits first, first + step, ... last, in pieces.
  static void ExpectSame(Function function, std::uint64_t first, std::uint64_t last,
                         std::uint32_t step = 1) {
    constexpr std::uint64_t kPiece = 1u << 24;
    DeviceArray<std::uint32_t> out(kPiece);
    int differences = 0;
    for (std::uint64_t begin = first; begin <= last && differences < 10; begin += kPiece * step) {
      const std::uint64_t left = (last - begin) / step + 1;
      const auto count = static_cast<std::uint32_t>(left < kPiece ? left : kPiece);
      const auto from = static_cast<std::uint32_t>(begin);
      ApplyToRange<<<(count + 255) / 256, 256>>>(function, from, step, count, out.data());
      ExpectCuda(cudaGetLastError(), "launch");
      const std::vector<std::uint32_t> got = out.Get(0, count);
      for (std::uint32_t i = 0; i < count && differences < 10; ++i) {
        const std::uint32_t bits = from + i * step;
        const std::uint32_t wanted = Apply(function, bits);
        if (got[i] == wanted) continue;
        ADD_FAILURE() << std::hex << "of 0x" << bits << ": device 0x" << got[i] << ", host 0x"
                      << wanted;
        ++differences;
      }
    }
  }
};

// Every value where there are few; else steps that are odd, and so come by every mantissa.
TEST_F(RoutingMathOnCuda, ReciprocalsOfOneToTwo) {
  ExpectSame(Function::kReciprocal, 0x3f800000, 0x40000000);
}
TEST_F(RoutingMathOnCuda, ExpOfNonPositiveNumbers) {
  ExpectSame(Function::kExp, 0x80000000, 0xff800000, 31);
  ExpectSame(Function::kExp, 0, 0);
}
TEST_F(RoutingMathOnCuda, Sigmoids) {
  ExpectSame(Function::kSigmoid, 0, 0x7f800000, 61);
  ExpectSame(Function::kSigmoid, 0x80000000, 0xff800000, 61);
}
TEST_F(RoutingMathOnCuda, KeysOfAnyBits) {
  ExpectSame(Function::kCanonical, 0, 0xffffffff, 31);
}
TEST_F(RoutingMathOnCuda, Conversions) {
  ExpectSame(Function::kFloat16, 0, 0xffff);
  ExpectSame(Function::kBfloat16, 0, 0xffffffff, 31);
}

}  // namespace
}  // namespace waymark::kernels
