// Code that runs on a device, and on the host in tests. Internal to kernels.
//
// WAYMARK_DEVICE marks it: code of the device where nvcc compiles it, ordinary inline code
// elsewhere.
//
// A warp: 32 lanes that run one function in step and exchange values.
//
// Kernels are written once, as templates over a Warp type. On a device that is CudaWarp below; in
// tests it is an emulated one, which runs the same source on the host, one lane after the other,
// and watches that all lanes come to the same call. A Warp is an object that each lane has, with
//
//   int lane()                               0 ... 31
//   std::uint32_t Max(std::uint32_t value)   the greatest of all lanes
//   std::uint32_t Min(std::uint32_t value)   the least
//   std::uint32_t Ballot(bool value)         bit l: the value of lane l
//   std::uint32_t Match(std::uint32_t value) bit l: whether lane l has the same value
//   T Shuffle(T value, int from)             the value of lane `from`; T: 32 bits wide
//   T ShuffleXor(T value, int mask)          the value of lane (lane() ^ mask)
//
// Every call but lane() is made by all 32 lanes together.
//
// A block of threads that works in phases.
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
#ifndef WAYMARK_KERNELS_DEVICE_CODE_H_
#define WAYMARK_KERNELS_DEVICE_CODE_H_

#include <cstdint>

#if defined(__CUDACC__)
#define WAYMARK_DEVICE __device__ __forceinline__
#else
#define WAYMARK_DEVICE inline
#endif

namespace waymark::kernels {

inline constexpr int kWarpLanes = 32;
inline constexpr std::uint32_t kAllLanes = 0xffffffffu;

#if defined(__CUDACC__)
// In blocks of one dimension, whole warps each. Reductions are one instruction from sm_80 on.
class CudaWarp {
 public:
  WAYMARK_DEVICE int lane() const { return static_cast<int>(threadIdx.x % kWarpLanes); }
  WAYMARK_DEVICE std::uint32_t Max(std::uint32_t value) const {
    return __reduce_max_sync(kAllLanes, value);
  }
  WAYMARK_DEVICE std::uint32_t Min(std::uint32_t value) const {
    return __reduce_min_sync(kAllLanes, value);
  }
  WAYMARK_DEVICE std::uint32_t Ballot(bool value) const { return __ballot_sync(kAllLanes, value); }
  WAYMARK_DEVICE std::uint32_t Match(std::uint32_t value) const {
    return __match_any_sync(kAllLanes, value);
  }
  template <class T>
  WAYMARK_DEVICE T Shuffle(T value, int from) const {
    return __shfl_sync(kAllLanes, value, from);
  }
  template <class T>
  WAYMARK_DEVICE T ShuffleXor(T value, int mask) const {
    return __shfl_xor_sync(kAllLanes, value, mask);
  }
};

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

#endif  // WAYMARK_KERNELS_DEVICE_CODE_H_
