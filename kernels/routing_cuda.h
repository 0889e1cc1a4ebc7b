// Routing on a CUDA device: the calls of routing.h, launched on the caller's stream.
#ifndef WAYMARK_KERNELS_ROUTING_CUDA_H_
#define WAYMARK_KERNELS_ROUTING_CUDA_H_

#include "kernels/routing.h"

struct CUstream_st;  // what CUDA's cudaStream_t and CUstream point to

namespace waymark::kernels {

// Routes rows [0, N) on `stream`, which belongs to the current device; null: its legacy default
// stream. Checks everything first: CheckRouting, and that each tensor's memory really lies on the
// current device, for which CUDA is asked once per pointer (checked_pointers.h). Then makes one
// launch, or none for N = 0: no allocation, no synchronisation, so the call can be captured into a
// graph. The tensors are used when the launch runs, in stream order; the structs are not kept. Any
// thread; its last error stays as it was (cuda_last_error.h). Same ids, order and weights as
// RouteOnHost, bit for bit.
RoutingCode RouteOnCuda(const RoutingConfig& config, const RoutingTensors& tensors,
                        CUstream_st* stream);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_ROUTING_CUDA_H_
