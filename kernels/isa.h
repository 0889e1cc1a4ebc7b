// Isa: the instruction sets that host code of this folder is written for, chosen while running.
#ifndef WAYMARK_KERNELS_ISA_H_
#define WAYMARK_KERNELS_ISA_H_

#include <cstdint>
#include <span>

namespace waymark::kernels {

// Every one gives the same answer to the last bit.
enum class Isa : std::uint8_t {
  kPortable,  // what the compiler was told to compile for
  kAvx2,      // x86-64 with AVX2, FMA, F16C and POPCNT
  kAvx512,    // and with AVX-512 F, BW and VL
};
// Those that this machine can run, kPortable first and the best last. Static storage; any thread.
[[nodiscard]] std::span<const Isa> SupportedIsas();
// "portable", "avx2", "avx512".
[[nodiscard]] const char* IsaName(Isa isa);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_ISA_H_
