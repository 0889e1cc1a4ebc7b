#include "tests/support/emulated_routing.h"

namespace waymark::kernels {

template <>
std::string RunRowsEmulated<DType::kFloat32>(const RoutingConfig& config,
                                             const routing::RouteArgs& args, EmulatedWarp& warp) {
  return RunRowsOfType<DType::kFloat32>(config, args, warp);
}

}  // namespace waymark::kernels
