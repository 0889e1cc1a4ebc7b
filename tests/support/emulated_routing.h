// Routing with the code of the CUDA kernels, on emulated warps: RouteOnCuda without a device.
#ifndef WAYMARK_TESTS_SUPPORT_EMULATED_ROUTING_H_
#define WAYMARK_TESTS_SUPPORT_EMULATED_ROUTING_H_

#include <cstdint>
#include <string>

#include "kernels/routing.h"
#include "kernels/routing_kernel.h"
#include "tests/support/emulated_warp.h"

namespace waymark::kernels {

// As RouteOnHost, on host tensors, row after row. Lanes run in an order drawn from `seed`. `fault` becomes "", or what a warp did that no device defines, and in which row.
RoutingCode RouteEmulated(const RoutingConfig& config, const RoutingTensors& tensors,
                          std::uint64_t seed, std::string& fault);

// One type of logits; each is compiled in a source of its own.
template <DType kLogits>
std::string RunRowsEmulated(const RoutingConfig& config, const routing::RouteArgs& args,
                            EmulatedWarp& warp);
template <>
std::string RunRowsEmulated<DType::kFloat32>(const RoutingConfig& config,
                                             const routing::RouteArgs& args, EmulatedWarp& warp);
template <>
std::string RunRowsEmulated<DType::kBfloat16>(const RoutingConfig& config,
                                              const routing::RouteArgs& args, EmulatedWarp& warp);
template <>
std::string RunRowsEmulated<DType::kFloat16>(const RoutingConfig& config,
                                             const routing::RouteArgs& args, EmulatedWarp& warp);

// What their sources hold.
template <DType kLogits>
std::string RunRowsOfType(const RoutingConfig& config, const routing::RouteArgs& args,
                          EmulatedWarp& warp) {
  std::string fault;
  routing::VisitVariant(config, args.num_experts,
                        [&]<class Score, class Weight, bool kGrouped, std::int32_t kQuads>() {
                          for (std::int64_t row = 0; row < args.rows && fault.empty(); ++row) {
                            fault = warp.Run([&](const EmulatedWarp::Lane& lane) {
                              routing::RouteRow<Score, Weight, kGrouped, kQuads, kLogits>(
                                  lane, args, row);
                            });
                            if (!fault.empty()) fault += " in row " + std::to_string(row);
                          }
                        });
  return fault;
}

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_SUPPORT_EMULATED_ROUTING_H_
