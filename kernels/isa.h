// Isa: the instruction sets that the host code of this folder is compiled for. The best one that
// the machine has is chosen at run time; tests choose each of them.
#ifndef WAYMARK_KERNELS_ISA_H_
#define WAYMARK_KERNELS_ISA_H_

#include <cstdint>
#include <span>

namespace waymark::kernels {

// Results are the same bits with every one of them.
enum class Isa : std::uint8_t {
  kPortable,  // plain C++, for the target that the compiler was given
  kAvx2,      // x86-64 with AVX2 and FMA
};
// The sets that this machine can run, kPortable first and the best last. Static storage; any
// thread.
[[nodiscard]] std::span<const Isa> SupportedIsas();
// "portable", "avx2".
[[nodiscard]] const char* IsaName(Isa isa);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_ISA_H_
