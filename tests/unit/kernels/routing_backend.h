// RoutingBackend: an implementation of routing, as the suite sees it: host tensors in, host tensors
// out.
//
// A test program is the sources of the suite (routing_suite*.cc) and one definition of
// RoutingBackends(). Each test goes through all of them; what a call must give is computed by the
// suite itself, and compared with the host form.
#ifndef WAYMARK_TESTS_UNIT_KERNELS_ROUTING_BACKEND_H_
#define WAYMARK_TESTS_UNIT_KERNELS_ROUTING_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "kernels/routing.h"

namespace waymark::kernels {

class RoutingBackend {
 public:
  virtual ~RoutingBackend() = default;

  // For messages: "host", "cuda", ...
  [[nodiscard]] virtual std::string name() const = 0;
  // Where tensors must lie once this backend has them. Host tensors are given to it; one marked as
  // lying elsewhere goes on to the implementation as it is, unread, to be refused.
  [[nodiscard]] virtual MemoryDevice device() const { return MemoryDevice::Host(); }
  // Runs a sample of the large grids only.
  [[nodiscard]] virtual bool slow() const { return false; }
  // Copies tensors to where they are used: spared what is sparse and huge.
  [[nodiscard]] virtual bool copies() const { return !(device() == MemoryDevice::Host()); }

  // RouteOnHost. Returns when the outputs are there.
  //
  // A backend that copies, copies the whole extent that shape and strides describe (the suite never
  // describes memory that is not there), outputs in both directions, so that gaps and tails are
  // kept; keeps each pointer's alignment up to 16 bytes; and fails the test if the implementation
  // wrote before or behind a copy. Null data stays null.
  virtual RoutingCode Route(const RoutingConfig& config, const RoutingTensors& tensors) = 0;
};

class HostRoutingBackend final : public RoutingBackend {
 public:
  [[nodiscard]] std::string name() const override { return "host"; }
  RoutingCode Route(const RoutingConfig& config, const RoutingTensors& tensors) override {
    return RouteOnHost(config, tensors);
  }
};

// Defined once in each test program: the backends that can run here. None: every test skips.
const std::vector<std::unique_ptr<RoutingBackend>>& RoutingBackends();

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_UNIT_KERNELS_ROUTING_BACKEND_H_
