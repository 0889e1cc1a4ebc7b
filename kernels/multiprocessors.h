// How many SMs the current device has. Internal to kernels.
#ifndef WAYMARK_KERNELS_MULTIPROCESSORS_H_
#define WAYMARK_KERNELS_MULTIPROCESSORS_H_

#include <cuda_runtime_api.h>

#include <atomic>

namespace waymark::kernels {

// Queries CUDA once per device; 1 if the query fails. Any thread. REQUIRES: a KeepLastError.
inline int CurrentMultiprocessors() {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];  // 0: not queried yet
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= kDevices) device = 0;
  int count = known[device].load(std::memory_order_relaxed);
  if (count != 0) return count;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 1;
  }
  known[device].store(count, std::memory_order_relaxed);
  return count;
}

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_MULTIPROCESSORS_H_
