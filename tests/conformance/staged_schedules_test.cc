// The random schedules through capture sessions over the staged transport, on an emulated device:
// what the engines' forwards write goes through views, slots and copies that run when the device
// pleases.
//
// WAYMARK_STAGED_SCHEDULES (default 1000) schedules from seed WAYMARK_SEED (default 1) on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/capture/staged_transport.h"
#include "tests/conformance/schedules.h"
#include "tests/conformance/session_feed.h"
#include "tests/support/emulated_device.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"

namespace waymark::conformance {
namespace {

class EmulatedForwards final : public ForwardDevice {
 public:
  explicit EmulatedForwards(std::uint64_t seed) : device_(std::make_shared<EmulatedDevice>(seed)) {}

  TransportFactory Transport() override { return StagedTransport::Factory({device_}); }
  void Write(const CaptureView& view, const std::vector<std::int16_t>& ids,
             std::size_t rows) override {
    device_->Enqueue(nullptr, [view, ids, rows] {
      const auto layer_ids = static_cast<std::ptrdiff_t>(rows) * view.top_k;
      for (std::int32_t layer = 0; layer < view.num_layers; ++layer) {
        std::copy_n(ids.begin() + layer * layer_ids, layer_ids, view.layer(layer));
      }
    });
  }

 private:
  const std::shared_ptr<EmulatedDevice> device_;
};

TEST(StagedSchedules, NothingWrongNothingUnexplained) {
  RunSchedulesThroughSessions(
      FromEnvironment("WAYMARK_SEED", 1),
      FromEnvironment("WAYMARK_STAGED_SCHEDULES", PlainOr(1000, 60)),
      [](std::uint64_t seed) { return std::make_unique<EmulatedForwards>(seed); });
}

}  // namespace
}  // namespace waymark::conformance
