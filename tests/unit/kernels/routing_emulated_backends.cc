// The routing suite on the code of the CUDA kernels, without a device.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/emulated_routing.h"
#include "tests/unit/kernels/routing_backend.h"

namespace waymark::kernels {
namespace {

class EmulatedRoutingBackend final : public RoutingBackend {
 public:
  [[nodiscard]] std::string name() const override { return "emulated warp"; }
  // 32 fibers a row, some tens of microseconds each.
  [[nodiscard]] bool slow() const override { return true; }
  RoutingCode Route(const RoutingConfig& config, const RoutingTensors& tensors) override {
    std::string fault;
    const RoutingCode code = RouteEmulated(config, tensors, ++seed_, fault);
    EXPECT_EQ(fault, "");
    return code;
  }

 private:
  std::uint64_t seed_ = 0;
};

}  // namespace

const std::vector<std::unique_ptr<RoutingBackend>>& RoutingBackends() {
  static const auto* const backends = [] {
    auto* list = new std::vector<std::unique_ptr<RoutingBackend>>();
    list->push_back(std::make_unique<EmulatedRoutingBackend>());
    return list;
  }();
  return *backends;
}

}  // namespace waymark::kernels
