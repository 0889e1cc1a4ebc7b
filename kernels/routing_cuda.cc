// What a call on a device checks, and its one launch.
#include <cuda_runtime_api.h>

#include "kernels/checked_pointers.h"
#include "kernels/cuda_last_error.h"
#include "kernels/multiprocessors.h"
#include "kernels/routing_cuda.h"
#include "kernels/routing_kernel.h"

namespace waymark::kernels {
namespace {

RoutingCode CudaFailure(RoutingArgument argument, cudaError_t error) {
  return {argument, RoutingRule::kCuda, error};
}

// A tensor names its device; CUDA knows. The question waits for nothing and is no part of a graph
// that is being captured, but it is not free: each pointer is asked for once. Managed memory lies
// on every device.
RoutingCode CheckMemory(RoutingArgument argument, const Tensor& tensor, MemoryDevice device) {
  static CheckedPointers checked;
  if (!tensor.given() || checked.Has(tensor.data, device.ordinal)) return {};
  cudaPointerAttributes attributes = {};
  if (const cudaError_t error = cudaPointerGetAttributes(&attributes, tensor.data);
      error != cudaSuccess) {
    return CudaFailure(argument, error);
  }
  const bool is_managed = attributes.type == cudaMemoryTypeManaged;
  const std::int64_t place = attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
  if (!is_managed && place != device.ordinal) {
    return {argument, RoutingRule::kNotOnDevice, place, device.ordinal};
  }
  checked.Add(tensor.data, device.ordinal);
  return {};
}

// Few rows: a warp a block, each on an SM of its own. Many: the largest blocks, fewer to schedule.
int BlockWarps(std::int64_t rows) {
  return rows <= std::int64_t{routing::kMaxBlockWarps} * CurrentMultiprocessors()
             ? 1
             : routing::kMaxBlockWarps;
}

const void* FindRouteKernel(const RoutingConfig& config, const Tensor& logits) {
  using routing::FindRouteKernel;
  switch (logits.dtype) {
    case DType::kBfloat16:
      return FindRouteKernel<DType::kBfloat16>(config, logits.shape[1]);
    case DType::kFloat16:
      return FindRouteKernel<DType::kFloat16>(config, logits.shape[1]);
    default:
      return FindRouteKernel<DType::kFloat32>(config, logits.shape[1]);
  }
}

}  // namespace

RoutingCode RouteOnCuda(const RoutingConfig& config, const RoutingTensors& tensors,
                        CUstream_st* stream) {
  const KeepLastError keep;
  int ordinal = 0;
  if (const cudaError_t error = cudaGetDevice(&ordinal); error != cudaSuccess) {
    return CudaFailure(RoutingArgument::kStream, error);
  }
  const MemoryDevice device = MemoryDevice::Cuda(ordinal);
  if (RoutingCode code = CheckRouting(config, tensors, device); !code.ok()) return code;
  const std::int64_t rows = tensors.logits.shape[0];
  if (rows == 0) return {};
  const struct {
    RoutingArgument argument;
    const Tensor& tensor;
  } given[] = {{RoutingArgument::kLogits, tensors.logits},
               {RoutingArgument::kBias, tensors.bias},
               {RoutingArgument::kTopKIds, tensors.topk_ids},
               {RoutingArgument::kTopKWeights, tensors.topk_weights},
               {RoutingArgument::kReplayOut, tensors.replay_out},
               {RoutingArgument::kReplayIn, tensors.replay_in},
               {RoutingArgument::kRouted, tensors.routed}};
  for (const auto& each : given) {
    if (RoutingCode code = CheckMemory(each.argument, each.tensor, device); !code.ok()) return code;
  }
  const int warps = BlockWarps(rows);
  routing::RouteArgs args = routing::MakeRouteArgs(config, tensors);
  void* parameters[] = {&args};
  const cudaError_t error =
      cudaLaunchKernel(FindRouteKernel(config, tensors.logits),
                       dim3(static_cast<unsigned>((rows + warps - 1) / warps)),
                       dim3(static_cast<unsigned>(warps * kWarpLanes)), parameters, 0, stream);
  if (error != cudaSuccess) return CudaFailure(RoutingArgument::kStream, error);
  return {};
}

}  // namespace waymark::kernels
