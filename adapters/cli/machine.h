// The machine that a measurement was made on, in words.
#ifndef WAYMARK_ADAPTERS_CLI_MACHINE_H_
#define WAYMARK_ADAPTERS_CLI_MACHINE_H_

#include <cstdint>
#include <string>

namespace waymark::cli {

struct Machine {
  std::string cpu;                 // the model's name; the architecture where the system has none
  unsigned cores = 0;              // logical ones that this process may use
  std::uint64_t memory_bytes = 0;  // of the machine
  std::uint64_t l2_bytes = 0;      // of one core; 0: not known
  std::uint64_t l3_bytes = 0;      // as the system reports it; 0: not known
  std::string kernel;              // "Linux 6.1.0"
  double load = 0;                 // mean of runnable processes over the last minute
  std::string kernels_isa;         // what packing and routing use: "portable", "avx2"
  std::string set_code_isa;        // the same of the set code
  bool cuda_built = false;         // CUDA was compiled in
  std::string cuda;                // the first device's name, or why there is none
  bool asserts = false;            // a build with asserts on is slower than what is released
};

[[nodiscard]] Machine ThisMachine();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_MACHINE_H_
