#include "adapters/cli/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "blockstore/wire/set_code_tile.h"
#include "kernels/isa.h"

#ifdef WAYMARK_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace waymark::cli {
namespace {

std::uint64_t System(int name) {
  const long value = sysconf(name);
  return value > 0 ? static_cast<std::uint64_t>(value) : 0;
}

std::string CpuName(const std::string& architecture) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos && line.rfind("model name", 0) == 0) {
      return line.substr(colon + 2);
    }
  }
  return architecture;
}

void FindCuda(Machine& machine) {
#ifdef WAYMARK_HAS_CUDA
  machine.cuda_built = true;
  int devices = 0;
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) {
    machine.cuda = std::string("no device: ") + cudaGetErrorString(error);
  } else {
    machine.cuda = devices > 0 ? properties.name : "no device";
  }
#else
  machine.cuda = "not compiled in";
#endif
}

}  // namespace

Machine ThisMachine() {
  Machine machine;
  utsname system{};
  if (uname(&system) == 0) {
    machine.kernel = std::string(system.sysname) + " " + system.release;
    machine.cpu = CpuName(system.machine);
  }
  machine.cores = std::thread::hardware_concurrency();
  machine.memory_bytes = System(_SC_PHYS_PAGES) * System(_SC_PAGESIZE);
  machine.l2_bytes = System(_SC_LEVEL2_CACHE_SIZE);
  machine.l3_bytes = System(_SC_LEVEL3_CACHE_SIZE);
  double load[1] = {0};
  if (getloadavg(load, 1) == 1) machine.load = load[0];
  machine.kernels_isa = kernels::IsaName(kernels::SupportedIsas().back());
  machine.set_code_isa = internal::SetCodeBackends().back().name;
#ifndef NDEBUG
  machine.asserts = true;
#endif
  FindCuda(machine);
  return machine;
}

}  // namespace waymark::cli
