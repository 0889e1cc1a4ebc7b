#include "tests/bench/gpu/empty_kernel.h"

namespace waymark::bench {
namespace {
__global__ void EmptyKernel() {}
}  // namespace

int LaunchEmptyKernel(cudaStream_t stream) {
  EmptyKernel<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

}  // namespace waymark::bench
