// Which CUDA kernel a routing call runs. Internal to kernels.
#ifndef WAYMARK_KERNELS_ROUTING_LAUNCH_H_
#define WAYMARK_KERNELS_ROUTING_LAUNCH_H_

#include "kernels/routing_kernel.h"

namespace waymark::kernels::routing {

// A kernel of this type of logits, as cudaLaunchKernel takes it: void(RouteArgs), one warp per row
// in blocks of at most kMaxBlockWarps. Each type is compiled in a file of its own, so that they are
// compiled side by side. REQUIRES: a checked call.
template <DType kLogits>
const void* FindRouteKernel(const RoutingConfig& config, std::int64_t num_experts);
template <>
const void* FindRouteKernel<DType::kFloat32>(const RoutingConfig& config, std::int64_t num_experts);
template <>
const void* FindRouteKernel<DType::kBfloat16>(const RoutingConfig& config,
                                              std::int64_t num_experts);
template <>
const void* FindRouteKernel<DType::kFloat16>(const RoutingConfig& config, std::int64_t num_experts);

// Many rows: as many as give each of the SM's four schedulers one, so that a block's warps end
// together and leave no scheduler idle; few rows: each warp is a block of its own, and goes to an
// SM of its own.
inline constexpr int kMaxBlockWarps = 4;

}  // namespace waymark::kernels::routing

#endif  // WAYMARK_KERNELS_ROUTING_LAUNCH_H_
