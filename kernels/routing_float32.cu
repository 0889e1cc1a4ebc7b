#include "kernels/routing_variants.cuh"

namespace waymark::kernels::routing {

template <>
const void* FindRouteKernel<DType::kFloat32>(const RoutingConfig& config,
                                             std::int64_t num_experts) {
  return RouteKernelOf<DType::kFloat32>(config, num_experts);
}

}  // namespace waymark::kernels::routing
