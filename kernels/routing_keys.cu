// The kernels that make selection keys alone.
#include "kernels/routing_launch.h"

namespace waymark::kernels::routing {
namespace {

template <class Score, DType kLogits>
__global__ void RoutingKeys(const KeysArgs args) {
  const std::int64_t count = args.rows * args.num_experts;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    StoreKey<Score, kLogits>(args, i);
  }
}

}  // namespace

const void* FindKeysKernel(RoutingMethod method, DType logits) {
  const void* kernel = nullptr;
  VisitKeys(method, logits, [&]<class Score, DType kLogits>() {
    kernel = reinterpret_cast<const void*>(&RoutingKeys<Score, kLogits>);
  });
  return kernel;
}

}  // namespace waymark::kernels::routing
