// The host transport keeps the contract of transports.
#include "plugin/capture/host_transport.h"
#include "tests/contract/transport_contract.h"

namespace waymark {
namespace {

struct HostTraits : InHostMemory {
  static TransportFactory Factory() { return &HostTransport::Create; }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Host, AllocationContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, BufferContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, CaptureContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, HandOverContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, PackedIdsContract, HostTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, StepContract, HostTraits);

}  // namespace
}  // namespace waymark
