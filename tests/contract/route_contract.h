// Layers that Waymark's own routing kernel routes: what the engine gets is what is recorded.
#ifndef WAYMARK_TESTS_CONTRACT_ROUTE_CONTRACT_H_
#define WAYMARK_TESTS_CONTRACT_ROUTE_CONTRACT_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "kernels/routing.h"
#include "tests/contract/transport_fixture.h"

namespace waymark {

// The traits of a transport whose tensors are not in host memory have
// `static kernels::MemoryDevice TensorDevice()`.
template <class Traits>
class RouteContract : public TransportFixture<Traits> {
 protected:
  using typename TransportFixture<Traits>::Engine;
  using TransportFixture<Traits>::kLayers;
  using TransportFixture<Traits>::kTopK;
  using Array = typename Traits::Array;
  static constexpr std::int32_t kExperts = 64;

  // The memory of the tensors, which live as long as the test.
  template <class T>
  void* Keep(const std::vector<T>& elements) {
    std::vector<std::uint8_t> bytes(elements.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
    arrays_.emplace_back(std::move(bytes));
    return const_cast<void*>(arrays_.back().data());
  }
  static kernels::MemoryDevice Where() {
    if constexpr (requires { Traits::TensorDevice(); }) {
      return Traits::TensorDevice();
    } else {
      return kernels::MemoryDevice::Host();
    }
  }

  static kernels::RoutingConfig Config() {
    kernels::RoutingConfig config;
    config.method = kernels::RoutingMethod::kRenormalize;
    config.top_k = kTopK;
    return config;
  }
  // Logits by which every row routes to engine.Id(step, row, layer, 0 ... K - 1), in that order.
  kernels::RoutingTensors Tensors(const Engine& engine, std::uint64_t step, std::int32_t layer,
                                  std::int32_t rows) {
    std::vector<float> logits(static_cast<std::size_t>(rows * kExperts), -1.0f);
    for (std::int32_t row = 0; row < rows; ++row) {
      for (std::int32_t k = 0; k < kTopK; ++k) {
        logits[static_cast<std::size_t>(row * kExperts + engine.Id(step, row, layer, k))] =
            static_cast<float>(10 - k);
      }
    }
    const auto ids = static_cast<std::size_t>(rows * kTopK);
    kernels::RoutingTensors tensors;
    tensors.logits =
        kernels::Tensor::Matrix(Keep(logits), kernels::DType::kFloat32, rows, kExperts, Where());
    tensors.topk_ids = kernels::Tensor::Matrix(Keep(std::vector<std::int32_t>(ids)),
                                               kernels::DType::kInt32, rows, kTopK, Where());
    tensors.topk_weights = kernels::Tensor::Matrix(Keep(std::vector<float>(ids)),
                                                   kernels::DType::kFloat32, rows, kTopK, Where());
    return tensors;
  }

  std::deque<Array> arrays_;
};

TYPED_TEST_SUITE_P(RouteContract);

TYPED_TEST_P(RouteContract, RoutedLayersLandAsTheyWereRouted) {
  typename TestFixture::Engine engine({.capture = LayerCapture::kRoutingKernel});
  for (std::uint64_t step = 1; step <= 6; ++step) {
    const auto rows = static_cast<std::int32_t>(step * 9);
    // Two rows are padding of the forward, which routes like the rest and does not land.
    ASSERT_TRUE(engine.Begin(step, rows - 2).ok());
    const CaptureView view = engine.session->view(StepId(step));
    for (std::int32_t layer = 0; layer < TestFixture::kLayers; ++layer) {
      const CaptureCode code = engine.session->Route(view, layer, TestFixture::Config(),
                                                     this->Tensors(engine, step, layer, rows));
      ASSERT_TRUE(code.ok()) << code.ToStatus();
    }
    ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
    engine.ExpectRows(step, rows - 2);
  }
  // The padding is -1 again before the next use of a buffer.
  engine.SettleAndAwaitBuffers();
  ASSERT_TRUE(engine.Begin(7, 60).ok());
  ASSERT_TRUE(engine.session->Submit(StepId(7)).ok());
  engine.ExpectMissing(7, 60, Reason::kNotCaptured);
}

TYPED_TEST_P(RouteContract, ReplayedIdsAreRecordedToo) {
  typename TestFixture::Engine engine({.capture = LayerCapture::kRoutingKernel});
  constexpr std::int32_t kRows = 11;
  ASSERT_TRUE(engine.Begin(1, kRows).ok());
  const CaptureView view = engine.session->view(StepId(1));
  for (std::int32_t layer = 0; layer < TestFixture::kLayers; ++layer) {
    kernels::RoutingTensors tensors = this->Tensors(engine, 1, layer, kRows);
    // The logits say otherwise, but for row 4, which has nothing to replay.
    std::vector<float> logits(static_cast<std::size_t>(kRows * TestFixture::kExperts), 0.0f);
    std::vector<std::int16_t> replayed;
    for (std::int32_t row = 0; row < kRows; ++row) {
      for (std::int32_t k = 0; k < TestFixture::kTopK; ++k) {
        const std::int16_t id = engine.Id(1, row, layer, k);
        replayed.push_back(row == 4 ? std::int16_t{-1} : id);
        if (row != 4) continue;
        logits[static_cast<std::size_t>(row * TestFixture::kExperts + id)] =
            static_cast<float>(10 - k);
      }
    }
    const kernels::MemoryDevice where = TestFixture::Where();
    tensors.logits.data = this->Keep(logits);
    tensors.replay_in = kernels::Tensor::Matrix(this->Keep(replayed), kernels::DType::kInt16, kRows,
                                                TestFixture::kTopK, where);
    tensors.routed = kernels::Tensor::Vector(this->Keep(std::vector<std::uint8_t>(kRows)),
                                             kernels::DType::kUint8, kRows, where);
    const CaptureCode code = engine.session->Route(view, layer, TestFixture::Config(), tensors);
    ASSERT_TRUE(code.ok()) << code.ToStatus();
  }
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  engine.ExpectRows(1, kRows);
}

TYPED_TEST_P(RouteContract, ALayerThatIsNotRoutedIsMissing) {
  typename TestFixture::Engine engine({.capture = LayerCapture::kRoutingKernel});
  ASSERT_TRUE(engine.Begin(1, 8).ok());
  const CaptureView view = engine.session->view(StepId(1));
  for (std::int32_t layer = 0; layer + 1 < TestFixture::kLayers; ++layer) {
    ASSERT_TRUE(engine.session
                    ->Route(view, layer, TestFixture::Config(), this->Tensors(engine, 1, layer, 8))
                    .ok());
  }
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  engine.ExpectMissing(1, 8, Reason::kNotCaptured);
}

TYPED_TEST_P(RouteContract, RouteRefusesWhatIsWrongAndRecordsNothing) {
  using kernels::RoutingArgument;
  using kernels::RoutingRule;
  const kernels::RoutingConfig config = TestFixture::Config();
  typename TestFixture::Engine writes;
  ASSERT_TRUE(writes.Begin(1, 2).ok());
  const kernels::RoutingTensors good = this->Tensors(writes, 1, 0, 2);
  EXPECT_EQ(writes.session->Route(writes.session->view(StepId(1)), 0, config, good).rule,
            CaptureRule::kLayerNotRouted);
  ASSERT_TRUE(writes.session->Drop(StepId(1)).ok());

  typename TestFixture::Engine engine({.capture = LayerCapture::kRoutingKernel});
  ASSERT_TRUE(engine.Begin(1, 2).ok());
  const CaptureView view = engine.session->view(StepId(1));
  EXPECT_EQ(engine.session->Route(view, -1, config, good).rule, CaptureRule::kLayerOutOfRange);
  EXPECT_EQ(engine.session->Route(view, TestFixture::kLayers, config, good).rule,
            CaptureRule::kLayerOutOfRange);
  const auto refused = [&](const kernels::RoutingConfig& with, const kernels::RoutingTensors& of,
                           RoutingArgument argument, RoutingRule rule) {
    const CaptureCode code = engine.session->Route(view, 0, with, of);
    EXPECT_EQ(code.rule, CaptureRule::kRouting);
    EXPECT_EQ(code.routing.argument, argument) << code.ToStatus();
    EXPECT_EQ(code.routing.rule, rule) << code.ToStatus();
    EXPECT_EQ(code.ToStatus().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(code.ToStatus().message(), "");
  };
  kernels::RoutingConfig bad = config;
  bad.top_k = TestFixture::kTopK - 1;
  refused(bad, good, RoutingArgument::kTopK, RoutingRule::kOtherShape);
  bad = config;
  bad.scale = 2.0f;
  refused(bad, good, RoutingArgument::kScale, RoutingRule::kUnexpected);
  kernels::RoutingTensors wrong = good;
  wrong.logits.shape[1] = TestFixture::kExperts - 1;
  refused(config, wrong, RoutingArgument::kLogits, RoutingRule::kOtherShape);
  wrong = good;
  wrong.topk_ids.dtype = kernels::DType::kInt64;
  refused(config, wrong, RoutingArgument::kTopKIds, RoutingRule::kDType);
  wrong = good;
  wrong.topk_weights.shape[0] = 1;
  refused(config, wrong, RoutingArgument::kTopKWeights, RoutingRule::kRows);
  wrong = good;
  wrong.replay_out = good.topk_ids;
  refused(config, wrong, RoutingArgument::kReplayOut, RoutingRule::kUnexpected);
  // More rows than the view has.
  const std::int32_t rows = engine.session->max_rows() + 1;
  refused(config, this->Tensors(engine, 1, 0, rows), RoutingArgument::kReplayOut,
          RoutingRule::kRows);
  // Logits that say that they lie elsewhere.
  wrong = good;
  wrong.logits.device = kernels::MemoryDevice::Cuda(77);
  refused(config, wrong, RoutingArgument::kLogits, RoutingRule::kNotOnDevice);

  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  engine.ExpectMissing(1, 2, Reason::kNotCaptured);
  // A view that outlived its step must not write into the step that has the buffer now.
  EXPECT_EQ(engine.session->Route(view, 0, config, good).rule, CaptureRule::kStepNotInFlight);
}

TYPED_TEST_P(RouteContract, AForwardThatIsNoStepRoutesIntoTheScratchView) {
  typename TestFixture::Engine engine({.capture = LayerCapture::kRoutingKernel});
  for (std::int32_t layer = 0; layer < TestFixture::kLayers; ++layer) {
    ASSERT_TRUE(engine.session
                    ->Route(engine.session->scratch_view(), layer, TestFixture::Config(),
                            this->Tensors(engine, 5, layer, 64))
                    .ok());
  }
  EXPECT_FALSE(TestFixture::AllMinusOne(*engine.session, kScratchBuffer));
  engine.session->Discard(64);
  EXPECT_TRUE(TestFixture::AllMinusOne(*engine.session, kScratchBuffer));
}

REGISTER_TYPED_TEST_SUITE_P(RouteContract, RoutedLayersLandAsTheyWereRouted,
                            ReplayedIdsAreRecordedToo, ALayerThatIsNotRoutedIsMissing,
                            RouteRefusesWhatIsWrongAndRecordsNothing,
                            AForwardThatIsNoStepRoutesIntoTheScratchView);

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_ROUTE_CONTRACT_H_
