#include "kernels/isa.h"

#include <cstddef>

namespace waymark::kernels {
namespace {

constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2};

std::size_t CountSupported() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 2 : 1;
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
  }
  return "unknown";
}

}  // namespace waymark::kernels
