#include "kernels/routing_variants.cuh"

namespace waymark::kernels::routing {

template const void* FindRouteKernel<DType::kFloat16>(const RoutingConfig&, std::int64_t);

}  // namespace waymark::kernels::routing
