// The contract of transports through the C ABI's table, over the host transport.
#include "plugin/capture/host_transport.h"
#include "tests/abi/abi_session.h"
#include "tests/contract/allocation_contract.h"
#include "tests/contract/buffer_contract.h"
#include "tests/contract/capture_contract.h"
#include "tests/contract/hand_over_contract.h"
#include "tests/contract/step_contract.h"

namespace waymark {
namespace {

struct AbiTraits : InHostMemory {
  struct Types {
    using Store = abi_test::AbiStore;
    using Session = abi_test::AbiSession;
    static auto MakeStore(const StoreOptions& options) { return Store::Create(options); }
    static auto MakeSession(Store& store, const CaptureOptions& options) {
      return Session::Create(store, options);
    }
  };
  // The table makes its own.
  static TransportFactory Factory() { return {}; }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Abi, AllocationContract, AbiTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Abi, BufferContract, AbiTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Abi, CaptureContract, AbiTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Abi, HandOverContract, AbiTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Abi, StepContract, AbiTraits);

}  // namespace
}  // namespace waymark
