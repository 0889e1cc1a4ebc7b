// Calls that an engine makes in every step allocate nothing once they are warm. A program that runs
// this theme links allocation_counter.cc.
#ifndef WAYMARK_TESTS_CONTRACT_ALLOCATION_CONTRACT_H_
#define WAYMARK_TESTS_CONTRACT_ALLOCATION_CONTRACT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/contract/allocation_counter.h"
#include "tests/contract/transport_fixture.h"
#include "tests/support/log_lines.h"

namespace waymark {

template <class Traits>
class AllocationContract : public TransportFixture<Traits> {};

TYPED_TEST_SUITE_P(AllocationContract);

TYPED_TEST_P(AllocationContract, StepPathAllocatesNothing) {
  LogLines logged;
  typename TestFixture::Engine engine({.num_buffers = 2, .log = logged.callback()});
  auto& session = *engine.session;
  const typename TypeParam::Array array(
      TestFixture::template TensorBytes<std::int32_t>(engine, 1, 0, 16, TestFixture::kTopK, 0));
  const StepIds ids = StepIds::OfLayer(array.data(), IdType::kInt32, 16, TestFixture::kTopK);
  const std::vector<std::int16_t> packed = engine.Ids(1, 16, true);
  const StepIds step_ids = StepIds::TokenMajor(packed.data(), IdType::kInt16, 16, session.shape());
  std::uint64_t step = 0;
  std::uint64_t allocations = 0;
  const auto measured = [&](auto&& call) {
    const std::uint64_t before = AllocationsOfThisThread();
    call();
    allocations += AllocationsOfThisThread() - before;
  };
  for (int round = 0; round < 20; ++round) {
    if (round == 4) allocations = 0;  // warm by then
    for (int end = 0; end < 5; ++end) {
      engine.Prepare(++step, 16);
      const StepBatch batch = engine.batch().view();
      StepCode code;
      measured(
          [&] { code = end == 3 ? session.BeginIdsStep(batch) : session.BeginStep(batch, 32); });
      ASSERT_TRUE(code.ok()) << code.ToStatus();
      StepCode handed;
      measured([&] {
        const CaptureView view = session.view(StepId(step));
        for (std::int32_t layer = 0; layer < TestFixture::kLayers; ++layer) {
          if (end != 3) handed = session.HandOver(view, layer, ids);
        }
        session.Discard(64);
      });
      ASSERT_TRUE(handed.ok());
      StepCode by_ids;
      measured([&] {
        if (end == 0 || end == 4) code = session.Submit(StepId(step), 64);
        if (end == 1) code = session.Drop(StepId(step));
        if (end == 2) code = session.Cancel(StepId(step));
        if (end == 3) by_ids = session.SubmitIds(StepId(step), step_ids);
      });
      ASSERT_TRUE(code.ok() && by_ids.ok());
      if (end == 4) {
        // 0, 3 and 4 are submitted: both buffers are out, and one more step overflows.
        engine.Prepare(++step, 16);
        const StepBatch overflow = engine.batch().view();
        measured([&] { code = session.BeginStep(overflow); });
        ASSERT_TRUE(code.dropped());
      }
    }
    measured([&] { engine.Settle(); });
  }
  // On CUDA the driver's own: that ours are none is seen on the emulated device.
  std::uint64_t most = 0;
  if constexpr (requires { TypeParam::kDriverAllocations; }) most = TypeParam::kDriverAllocations;
  EXPECT_LE(allocations, most);
  for (const LogLines::Line& line : logged.lines())  // the engine drops steps on purpose
    EXPECT_TRUE(line.text.starts_with("a step was dropped")) << line.text;
}

REGISTER_TYPED_TEST_SUITE_P(AllocationContract, StepPathAllocatesNothing);

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_ALLOCATION_CONTRACT_H_
