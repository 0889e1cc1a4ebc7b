// What the launch of a kernel costs that does nothing.
#ifndef WAYMARK_TESTS_BENCH_GPU_EMPTY_KERNEL_H_
#define WAYMARK_TESTS_BENCH_GPU_EMPTY_KERNEL_H_

#include <cuda_runtime_api.h>

namespace waymark::bench {

// One block of one warp. Returns a cudaError_t.
int LaunchEmptyKernel(cudaStream_t stream);

}  // namespace waymark::bench

#endif  // WAYMARK_TESTS_BENCH_GPU_EMPTY_KERNEL_H_
