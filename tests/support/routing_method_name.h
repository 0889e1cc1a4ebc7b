// RoutingMethodName: "Default", "Renormalize", ..., for what tests and benchmarks print.
#ifndef WAYMARK_TESTS_SUPPORT_ROUTING_METHOD_NAME_H_
#define WAYMARK_TESTS_SUPPORT_ROUTING_METHOD_NAME_H_

#include <cstddef>
#include <iterator>

#include "kernels/routing.h"

namespace waymark::kernels {

inline const char* RoutingMethodName(RoutingMethod method) {
  constexpr const char* kNames[] = {"Default", "Renormalize", "RenormalizeNaive", "DeepSeekV3",
                                    "Llama4",  "TopK",        "SigmoidRenorm",    "MiniMax2",
                                    "Sigmoid", "TopKSigmoid"};
  static_assert(std::size(kNames) == kNumRoutingMethods);
  return kNames[static_cast<std::size_t>(method)];
}

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_SUPPORT_ROUTING_METHOD_NAME_H_
