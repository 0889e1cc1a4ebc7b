#include "kernels/pack_cuda.h"

#include <cuda_runtime_api.h>

#include "kernels/capture_kernel.h"
#include "kernels/cuda_last_error.h"
#include "kernels/gather_kernel.h"
#include "kernels/multiprocessors.h"
#include "kernels/pack_kernel.h"

namespace waymark::kernels {
namespace device {
namespace {

extern __shared__ __align__(kVector) std::uint8_t shared_memory[];

template <class Input, bool kVectors>
__global__ void __launch_bounds__(kThreads)
    CaptureKernel(const __grid_constant__ CapturePlan plan) {
  CaptureTile<Input, kVectors>(CudaBlock(), plan);
}

// Four blocks per SM (kTwoWaves counts on them); the loop over any K needs the registers of three.
template <class Packed, int kTopK>
__global__ void __launch_bounds__(kThreads, kTopK == 0 ? 3 : 4)
    PackKernel(const __grid_constant__ PackPlan plan) {
  PackTile<Packed, kTopK>(CudaBlock(), plan, shared_memory);
}

template <class Packed, class Out>
__global__ void __launch_bounds__(kThreads) GatherKernel(const __grid_constant__ GatherPlan plan) {
  GatherTile<Packed, Out>(CudaBlock(), plan, shared_memory);
}

template <class Plan>
int Launch(void (*kernel)(Plan), const Plan& plan, unsigned shared_bytes, CUstream_st* stream) {
  if (plan.blocks > kMaxBlocks) return cudaErrorInvalidValue;
  void* arguments[] = {const_cast<Plan*>(&plan)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                          dim3(static_cast<unsigned>(plan.blocks)), dim3(kThreads), arguments,
                          shared_bytes, stream);
}

}  // namespace
}  // namespace device

int CaptureIdsOnCuda(const IdsView& ids, std::int64_t rows, std::int32_t top_k, std::int16_t* view,
                     CUstream_st* stream) {
  if (!device::CheckCapture(ids, rows, top_k, view)) return cudaErrorInvalidValue;
  const KeepLastError keep;
  const device::CapturePlan plan = device::PlanCapture(ids, rows, top_k, view);
  if (plan.blocks == 0) return cudaSuccess;
  int error = cudaSuccess;
  device::VisitCapture(plan, [&]<class Input, bool kVectors>() {
    error = device::Launch(&device::CaptureKernel<Input, kVectors>, plan, 0, stream);
  });
  return error;
}

int PackRowsOnCuda(const PackLaunch& pack, CUstream_st* stream) {
  if (!device::CheckPack(pack)) return cudaErrorInvalidValue;
  const KeepLastError keep;
  const device::PackPlan plan = device::PlanPack(pack, CurrentMultiprocessors());
  if (plan.blocks == 0) return cudaSuccess;
  int error = cudaSuccess;
  device::VisitPack(plan, [&]<class Packed, int kTopK>() {
    error = device::Launch(&device::PackKernel<Packed, kTopK>, plan, plan.shared_bytes, stream);
  });
  return error;
}

int GatherRowsOnCuda(const CudaGather& gather, CUstream_st* stream) {
  if (!device::CheckGather(gather)) return cudaErrorInvalidValue;
  const KeepLastError keep;
  const device::GatherPlan plan = device::PlanGather(gather);
  if (plan.blocks == 0) return cudaSuccess;
  int error = cudaSuccess;
  device::VisitGather(plan, [&]<class Packed, class Out>() {
    error = device::Launch(&device::GatherKernel<Packed, Out>, plan, plan.shared_bytes, stream);
  });
  return error;
}

}  // namespace waymark::kernels
