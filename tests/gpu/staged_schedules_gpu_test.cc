// The random schedules through capture sessions over the staged transport, on a CUDA device.
//
// WAYMARK_STAGED_SCHEDULES (default 300) schedules from seed WAYMARK_SEED (default 1) on.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/capture/cuda_device.h"
#include "plugin/capture/staged_transport.h"
#include "tests/conformance/schedules.h"
#include "tests/conformance/session_feed.h"
#include "tests/gpu/cuda_support.h"
#include "tests/support/test_seed.h"

namespace waymark::conformance {
namespace {

using kernels::ExpectCuda;

// Copies of pageable memory have left it when the call returns, and arrive in stream order.
class CudaForwards final : public ForwardDevice {
 public:
  TransportFactory Transport() override {
    return StagedTransport::Factory({CudaDevice::Create(0).value()});
  }
  void Write(const CaptureView& view, const std::vector<std::int16_t>& ids,
             std::size_t rows) override {
    const std::size_t layer_ids = rows * static_cast<std::size_t>(view.top_k);
    if (rows == 0) return;
    for (std::int32_t layer = 0; layer < view.num_layers; ++layer) {
      ExpectCuda(cudaMemcpyAsync(view.layer(layer),
                                 ids.data() + static_cast<std::size_t>(layer) * layer_ids,
                                 layer_ids * sizeof(std::int16_t), cudaMemcpyHostToDevice, nullptr),
                 "cudaMemcpyAsync");
    }
  }
};

class StagedSchedulesOnCuda : public kernels::CudaTest {};

TEST_F(StagedSchedulesOnCuda, NothingWrongNothingUnexplained) {
  RunSchedulesThroughSessions(FromEnvironment("WAYMARK_SEED", 1),
                              FromEnvironment("WAYMARK_STAGED_SCHEDULES", 300),
                              [](std::uint64_t) { return std::make_unique<CudaForwards>(); });
}

}  // namespace
}  // namespace waymark::conformance
