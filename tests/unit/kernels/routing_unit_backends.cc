// The backends of the unit program: those that need no device.
#include <memory>
#include <vector>

#include "tests/unit/kernels/routing_backend.h"

namespace waymark::kernels {

const std::vector<std::unique_ptr<RoutingBackend>>& RoutingBackends() {
  static const auto* const backends = [] {
    auto* list = new std::vector<std::unique_ptr<RoutingBackend>>();
    list->push_back(std::make_unique<HostRoutingBackend>());
    return list;
  }();
  return *backends;
}

}  // namespace waymark::kernels
