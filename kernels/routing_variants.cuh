// The CUDA variants of one type of logits; each file that includes this instantiates one. Internal
// to kernels.
#ifndef WAYMARK_KERNELS_ROUTING_VARIANTS_CUH_
#define WAYMARK_KERNELS_ROUTING_VARIANTS_CUH_

#include "kernels/routing_kernel.h"

namespace waymark::kernels::routing {

// Registers decide how many warps an SM holds, and those hide each other's waits. ptxas makes a
// good choice of its own (E <= 256: 32 to 40, so 48 to 64 warps of the 64 that there can be), but
// for the largest rows it would spill rather than hold fewer than five blocks.
template <int kQuads>
inline constexpr int kMinBlocks = kQuads >= 8 ? 4 : 0;

template <class Score, class Weight, bool kGrouped, int kQuads, DType kLogits>
__global__ void __launch_bounds__(kMaxBlockWarps* kWarpLanes, kMinBlocks<kQuads>)
    RouteRows(const RouteArgs args) {
  const std::int64_t row = std::int64_t{blockIdx.x} * (blockDim.x / kWarpLanes) +
                           static_cast<std::int64_t>(threadIdx.x / kWarpLanes);
  if (row >= args.rows) return;
  RouteRow<Score, Weight, kGrouped, kQuads, kLogits>(CudaWarp(), args, row);
}

template <DType kLogits>
const void* FindRouteKernel(const RoutingConfig& config, std::int64_t num_experts) {
  const void* kernel = nullptr;
  VisitVariant(
      config, num_experts, [&]<class Score, class Weight, bool kGrouped, std::int32_t kQuads>() {
        kernel =
            reinterpret_cast<const void*>(&RouteRows<Score, Weight, kGrouped, kQuads, kLogits>);
      });
  return kernel;
}

}  // namespace waymark::kernels::routing

#endif  // WAYMARK_KERNELS_ROUTING_VARIANTS_CUH_
