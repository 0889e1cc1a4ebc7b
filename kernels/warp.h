// A warp: 32 lanes that run one function in step and exchange values. Internal to kernels.
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
#ifndef WAYMARK_KERNELS_WARP_H_
#define WAYMARK_KERNELS_WARP_H_

#include <cstdint>

#include "kernels/device_code.h"

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
#endif

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_WARP_H_
