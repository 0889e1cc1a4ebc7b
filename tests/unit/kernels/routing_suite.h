// What the tests of routing share. A test program is the sources routing_suite_*.cc and a
// definition of RoutingBackends() (routing_backend.h).
#ifndef WAYMARK_TESTS_UNIT_KERNELS_ROUTING_SUITE_H_
#define WAYMARK_TESTS_UNIT_KERNELS_ROUTING_SUITE_H_

#include <gtest/gtest.h>

#include "tests/unit/kernels/routing_backend.h"

namespace waymark::kernels {

// Skips where no backend can run.
class RoutingSuite : public testing::Test {
 protected:
  void SetUp() override {
    if (RoutingBackends().empty()) GTEST_SKIP() << "no backend can run here";
  }
};

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_UNIT_KERNELS_ROUTING_SUITE_H_
