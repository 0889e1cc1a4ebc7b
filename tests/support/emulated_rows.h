// The kernels of pack_cuda.h, run on the host by emulated blocks. REQUIRES: the plan is of a
// checked call.
#ifndef WAYMARK_TESTS_SUPPORT_EMULATED_ROWS_H_
#define WAYMARK_TESTS_SUPPORT_EMULATED_ROWS_H_

#include <cstdint>
#include <random>

#include "kernels/capture_kernel.h"
#include "kernels/gather_kernel.h"
#include "kernels/pack_kernel.h"
#include "tests/support/emulated_block.h"

namespace waymark::kernels {

inline void RunEmulated(const device::CapturePlan& plan, std::mt19937_64& random) {
  device::VisitCapture(plan, [&]<class Input, bool kVectors>() {
    RunBlocks(plan.blocks, device::kThreads, 0, random,
              [&](const EmulatedBlock& block, std::uint8_t* /*shared*/) {
                device::CaptureTile<Input, kVectors>(block, plan);
              });
  });
}
inline void RunEmulated(const device::PackPlan& plan, std::mt19937_64& random) {
  device::VisitPack(plan, [&]<class Packed, int kTopK>() {
    RunBlocks(plan.blocks, device::kThreads, plan.shared_bytes, random,
              [&](const EmulatedBlock& block, std::uint8_t* shared) {
                device::PackTile<Packed, kTopK>(block, plan, shared);
              });
  });
}
inline void RunEmulated(const device::GatherPlan& plan, std::mt19937_64& random) {
  device::VisitGather(plan, [&]<class Packed, class Out>() {
    RunBlocks(plan.blocks, device::kThreads, plan.shared_bytes, random,
              [&](const EmulatedBlock& block, std::uint8_t* shared) {
                device::GatherTile<Packed, Out>(block, plan, shared);
              });
  });
}

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_SUPPORT_EMULATED_ROWS_H_
