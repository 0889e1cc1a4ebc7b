// Routing in vectors: what routing_host.cc calls in place of its plain form. Internal to kernels.
#ifndef WAYMARK_KERNELS_ROUTING_OPS_H_
#define WAYMARK_KERNELS_ROUTING_OPS_H_

#include "kernels/routing.h"

namespace waymark::kernels::internal {

#if defined(__x86_64__)
// Every row of `tensors`, as the plain form to the last bit. REQUIRES: CheckRouting is content; the
// processor has the instructions.
void RouteRowsAvx2(const RoutingConfig& config, const RoutingTensors& tensors);
void RouteRowsAvx512(const RoutingConfig& config, const RoutingTensors& tensors);
#endif

}  // namespace waymark::kernels::internal

#endif  // WAYMARK_KERNELS_ROUTING_OPS_H_
