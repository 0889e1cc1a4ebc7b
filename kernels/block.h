// A block of threads that works in phases. Internal to kernels.
//
// Kernels over tiles of rows are written once, as templates over a Block type. On a device that is
// CudaBlock below; in tests it is an emulated one, which runs the same source on the host, the
// threads of a phase one after the other in an order chosen by seed. A Block is an object that each
// thread has, with
//
//   std::uint64_t index()                                   which block of the grid
//   void ForEachThread(phase)                               phase(thread) by every thread, then a
//                                                           barrier; all threads come to it
//   void AtomicAdd(std::uint32_t* at, std::uint32_t value)  in shared or in global memory
//   void AtomicMin(std::uint32_t* at, std::uint32_t value)
//
// What lies outside of a phase is computed by every thread and depends on the block alone. Nothing
// private to a thread outlasts its phase.
#ifndef WAYMARK_KERNELS_BLOCK_H_
#define WAYMARK_KERNELS_BLOCK_H_

#include <cstdint>

#include "kernels/device_code.h"

namespace waymark::kernels {

#if defined(__CUDACC__)
// In grids and blocks of one dimension.
class CudaBlock {
 public:
  WAYMARK_DEVICE std::uint64_t index() const { return blockIdx.x; }
  template <class Phase>
  WAYMARK_DEVICE void ForEachThread(Phase&& phase) const {
    phase(static_cast<unsigned>(threadIdx.x));
    __syncthreads();
  }
  WAYMARK_DEVICE void AtomicAdd(std::uint32_t* at, std::uint32_t value) const {
    atomicAdd(at, value);
  }
  WAYMARK_DEVICE void AtomicMin(std::uint32_t* at, std::uint32_t value) const {
    atomicMin(at, value);
  }
};
#endif

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_BLOCK_H_
