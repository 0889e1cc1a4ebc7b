#include "tests/support/emulated_routing.h"

namespace waymark::kernels {

template <>
std::string RunRowsEmulated<DType::kBfloat16>(const RoutingConfig& config,
                                              const routing::RouteArgs& args, EmulatedWarp& warp) {
  return RunRowsOfType<DType::kBfloat16>(config, args, warp);
}

}  // namespace waymark::kernels
