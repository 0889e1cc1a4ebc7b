#include "tests/support/emulated_routing.h"

namespace waymark::kernels {

RoutingCode RouteEmulated(const RoutingConfig& config, const RoutingTensors& tensors,
                          std::uint64_t seed, std::string& fault) {
  fault.clear();
  if (RoutingCode code = CheckRouting(config, tensors, MemoryDevice::Host()); !code.ok())
    return code;
  const routing::RouteArgs args = routing::MakeRouteArgs(config, tensors);
  EmulatedWarp warp(seed);
  switch (tensors.logits.dtype) {
    case DType::kBfloat16:
      fault = RunRowsEmulated<DType::kBfloat16>(config, args, warp);
      break;
    case DType::kFloat16:
      fault = RunRowsEmulated<DType::kFloat16>(config, args, warp);
      break;
    default:
      fault = RunRowsEmulated<DType::kFloat32>(config, args, warp);
      break;
  }
  return {};
}

}  // namespace waymark::kernels
