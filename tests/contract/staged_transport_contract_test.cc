// The staged transport keeps the contract of transports, over a device that runs what is enqueued
// when it pleases.
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "plugin/capture/staged_transport.h"
#include "tests/contract/transport_contract.h"
#include "tests/support/emulated_device.h"
#include "tests/support/test_seed.h"

namespace waymark {
namespace {

template <EmulatedDevice::Mode kMode>
struct StagedTraits {
  // One device for the program: sessions and the tensors of the engines share it.
  static const std::shared_ptr<EmulatedDevice>& TheDevice() {
    static const auto device =
        std::make_shared<EmulatedDevice>(FromEnvironment("WAYMARK_SEED", 1), kMode);
    return device;
  }
  static TransportFactory Factory() { return StagedTransport::Factory({TheDevice()}); }

  static void Write(const CaptureView& view, std::int32_t layer, std::int32_t first_row,
                    const std::int16_t* ids, std::int32_t rows) {
    std::int16_t* const to =
        view.layer(layer) + static_cast<std::ptrdiff_t>(first_row) * view.top_k;
    std::vector<std::int16_t> copy(ids, ids + static_cast<std::ptrdiff_t>(rows) * view.top_k);
    TheDevice()->Enqueue(nullptr, [to, copy = std::move(copy)] {
      if (!copy.empty()) std::memcpy(to, copy.data(), copy.size() * sizeof(std::int16_t));
    });
  }

  class Array {
   public:
    explicit Array(std::vector<std::uint8_t> bytes)
        : bytes_(std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes))) {}
    // As a framework's allocator: freed in stream order.
    ~Array() {
      TheDevice()->Enqueue(nullptr, [bytes = bytes_] {});
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    [[nodiscard]] const void* data() const { return bytes_->data(); }

   private:
    std::shared_ptr<const std::vector<std::uint8_t>> bytes_;
  };
};
using Late = StagedTraits<EmulatedDevice::Mode::kLate>;
using AtOnce = StagedTraits<EmulatedDevice::Mode::kAtOnce>;

INSTANTIATE_TYPED_TEST_SUITE_P(StagedLate, BufferContract, Late);
INSTANTIATE_TYPED_TEST_SUITE_P(StagedLate, CaptureContract, Late);
INSTANTIATE_TYPED_TEST_SUITE_P(StagedLate, HandOverContract, Late);
INSTANTIATE_TYPED_TEST_SUITE_P(StagedLate, PackedIdsContract, Late);
INSTANTIATE_TYPED_TEST_SUITE_P(StagedLate, StepContract, Late);
INSTANTIATE_TYPED_TEST_SUITE_P(StagedAtOnce, AllocationContract, AtOnce);
INSTANTIATE_TYPED_TEST_SUITE_P(StagedAtOnce, StepContract, AtOnce);

}  // namespace
}  // namespace waymark
