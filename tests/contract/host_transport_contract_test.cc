// The host transport keeps the contract of transports.
#include <cstring>
#include <utility>
#include <vector>

#include "plugin/capture/host_transport.h"
#include "tests/contract/transport_contract.h"

namespace waymark {
namespace {

struct HostTraits {
  static TransportFactory Factory() { return &HostTransport::Create; }
  static void Write(const CaptureView& view, std::int32_t layer, std::int32_t first_row,
                    const std::int16_t* ids, std::int32_t rows) {
    if (rows == 0) return;
    std::memcpy(view.layer(layer) + static_cast<std::ptrdiff_t>(first_row) * view.top_k, ids,
                static_cast<std::size_t>(rows) * static_cast<std::size_t>(view.top_k) *
                    sizeof(std::int16_t));
  }
  class Array {
   public:
    explicit Array(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}
    [[nodiscard]] const void* data() const { return bytes_.data(); }

   private:
    std::vector<std::uint8_t> bytes_;
  };
};

INSTANTIATE_TYPED_TEST_SUITE_P(Host, AllocationContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, BufferContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, CaptureContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, DeviceSlotsContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, HandOverContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, PackedIdsContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, StepContract, HostTraits);

}  // namespace
}  // namespace waymark
