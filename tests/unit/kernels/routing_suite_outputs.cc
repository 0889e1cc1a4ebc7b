// What a routing call writes, and what it leaves alone.
#include <cstdint>

#include "kernels/tensor.h"
#include "tests/unit/kernels/routing_suite.h"

namespace waymark::kernels {
namespace {

class RoutingOutputs : public RoutingSuite {};

TEST_F(RoutingOutputs, NoRowsAndNullDataIsOk) {
  RoutingTensors tensors;
  tensors.logits = Tensor::Matrix(nullptr, DType::kFloat32, 0, 64);
  RoutingConfig config;
  config.top_k = 8;
  for (const auto& backend : RoutingBackends()) {
    SCOPED_TRACE(backend->name());
    EXPECT_TRUE(backend->Route(config, tensors).ok());
  }
}

}  // namespace
}  // namespace waymark::kernels
