#include "kernels/isa.h"

#include <cstddef>

namespace waymark::kernels {
namespace {

constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512};

std::size_t CountSupported() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl")) {
    return 2;
  }
  return 3;
#else
  return 1;
#endif
}

}  // namespace

std::span<const Isa> SupportedIsas() {
  static const std::size_t count = CountSupported();
  return std::span<const Isa>(kAllIsas).first(count);
}

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace waymark::kernels
