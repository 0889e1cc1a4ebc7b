// What comes out of a captured forward: the routes of exactly its rows, or the reason why not.
#ifndef WAYMARK_TESTS_CONTRACT_CAPTURE_CONTRACT_H_
#define WAYMARK_TESTS_CONTRACT_CAPTURE_CONTRACT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plugin/capture/self_test.h"
#include "tests/contract/transport_fixture.h"

namespace waymark {

template <class Traits>
class CaptureContract : public TransportFixture<Traits> {};

TYPED_TEST_SUITE_P(CaptureContract);

TYPED_TEST_P(CaptureContract, RowsLandExactly) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    for (const std::int32_t experts : {64, 256, 1000}) {
      typename TestFixture::Engine engine({.landing = landing, .num_experts = experts});
      std::uint64_t step = 0;
      for (const std::int32_t rows : {1, 2, 7, 8, 9, 33, 64, 3}) {
        ++step;
        engine.Run(step, rows);
        engine.ExpectRows(step, rows);
        engine.SettleAndAwaitBuffers();
      }
      for (std::uint64_t again = 1; again <= step; ++again) {
        engine.ExpectRows(again, again == 1 ? 1 : 2);
      }
      EXPECT_EQ(engine.SilentRows(), 0u);
    }
  }
}

TYPED_TEST_P(CaptureContract, SilentLayerIsMissingInExactlyItsRowsAndNamed) {
  typename TestFixture::Engine engine;
  // Batch size 24 (padded): layer 3 writes nothing. Batch size 9: layer 1 stops after row 4.
  engine.Run(1, 20, 3, 24);
  engine.Start(2, 9, 1);
  const std::vector<std::int16_t> ids = engine.Ids(2, 9);
  TypeParam::Write(engine.session->view(StepId(2)), 1, 0, ids.data() + 9 * TestFixture::kTopK, 5);
  ASSERT_TRUE(engine.session->Submit(StepId(2)).ok());
  engine.Run(3, 6);

  engine.ExpectMissing(1, 20, Reason::kNotCaptured);
  engine.ExpectRowsWhere(2, 9, Reason::kNotCaptured, [](std::int32_t row) { return row < 5; });
  engine.ExpectRows(3, 6);

  const CaptureStats stats = engine.session->GetStats();
  EXPECT_EQ(stats.layers[1].layer_id, 2);
  EXPECT_EQ(stats.layers[1].module, "model.block1.gate");
  EXPECT_EQ(stats.layers[1].rows_silent, 4u);
  EXPECT_EQ(stats.layers[3].layer_id, 7);
  EXPECT_EQ(stats.layers[3].rows_silent, 20u);  // of the padding nobody wants a row
  EXPECT_EQ(engine.SilentRows(), 24u);
}

TYPED_TEST_P(CaptureContract, SilentRowsAreCountedInEveryStep) {
  typename TestFixture::Engine engine({.num_buffers = 1});
  for (std::uint64_t step = 1; step <= 3; ++step) {
    engine.Run(step, 7, 2);
    engine.ExpectMissing(step, 7, Reason::kNotCaptured);
    EXPECT_EQ(engine.session->GetStats().layers[2].rows_silent, 7 * step);
  }
}

// The bug of every buffer with fixed addresses: a layer that does not write shows last step's
// plausible ids. Padded steps fill every buffer; then a full ring, a Cancel, a Drop, also of steps
// whose padding is said at their Submit alone, which a step that is dropped does not reach; then
// small steps with one silent layer, through every buffer.
TYPED_TEST_P(CaptureContract, StaleIdsNeverComeBack) {
  constexpr std::int32_t kPadded = 512;
  constexpr std::int32_t kValid = 300;
  constexpr std::int32_t kBuffers = 3;
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    for (const std::string end :
         {"submit", "full ring", "cancel", "drop", "late padding", "padding nobody told of, cancel",
          "padding nobody told of, drop"}) {
      const bool told = end.find("padding") == std::string::npos;
      SCOPED_TRACE(end);
      typename TestFixture::Engine engine(
          {.landing = landing, .max_rows = kPadded, .num_buffers = kBuffers});
      std::uint64_t step = 0;
      for (int i = 0; i < kBuffers; ++i) {
        ++step;
        engine.Run(step, kValid, -1, kPadded);
        engine.ExpectRows(step, kValid);
        engine.SettleAndAwaitBuffers();
      }
      for (int i = 0; i < kBuffers; ++i) {
        ++step;
        ASSERT_TRUE(engine.Begin(step, kValid, told ? kPadded : 0).ok());
        engine.Forward(step, kPadded);
      }
      if (end == "full ring") {
        ASSERT_TRUE(engine.Begin(step + 1, kValid, kPadded).dropped());
        engine.Forward(step + 1, kPadded);  // writes the scratch view
      }
      for (std::uint64_t ended = step - kBuffers + 1; ended <= step; ++ended) {
        if (end.ends_with("cancel")) {
          ASSERT_TRUE(engine.session->Cancel(StepId(ended)).ok());
        } else if (end.ends_with("drop")) {
          ASSERT_TRUE(engine.session->Drop(StepId(ended)).ok());
        } else {
          ASSERT_TRUE(
              engine.session->Submit(StepId(ended), end == "late padding" ? kPadded : 0).ok());
        }
      }
      step += 1;
      engine.SettleAndAwaitBuffers();
      for (int i = 0; i < 2 * kBuffers; ++i) {
        ++step;
        const std::int32_t rows = i % 2 == 0 ? 400 : 40;
        const std::int32_t silent_layer = i % TestFixture::kLayers;
        engine.Run(step, rows, silent_layer);
        engine.ExpectMissing(step, rows, Reason::kNotCaptured);
        engine.SettleAndAwaitBuffers();
      }
    }
  }
}

TYPED_TEST_P(CaptureContract, RepeatedAndOutOfRangeIdsAreInvalid) {
  for (const std::int32_t experts : {64, 1000}) {
    typename TestFixture::Engine engine({.num_experts = experts});
    engine.Start(1, 12);
    const CaptureView view = engine.session->view(StepId(1));
    const auto out = static_cast<std::int16_t>(experts);
    const std::int16_t repeated[] = {5, 6, 7, 5};
    const std::int16_t above[] = {5, 6, out, 8};
    const std::int16_t negative[] = {-2, 6, 7, 8};
    TypeParam::Write(view, 0, 2, repeated, 1);
    TypeParam::Write(view, 2, 4, above, 1);
    TypeParam::Write(view, 2, 11, negative, 1);
    ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
    engine.ExpectRowsWhere(1, 12, Reason::kInvalidId,
                           [](std::int32_t row) { return row != 2 && row != 4 && row != 11; });
    const CaptureStats stats = engine.session->GetStats();
    EXPECT_EQ(stats.layers[0].rows_invalid, 1u);
    EXPECT_EQ(stats.layers[1].rows_invalid, 0u);
    EXPECT_EQ(stats.layers[2].rows_invalid, 2u);
    EXPECT_EQ(engine.SilentRows(), 0u);
  }
}

TYPED_TEST_P(CaptureContract, DiscardedForwardsLeaveNothingBehind) {
  typename TestFixture::Engine engine;
  engine.Forward(engine.session->scratch_view(), 77, 64);
  EXPECT_FALSE(TestFixture::AllMinusOne(*engine.session, kScratchBuffer));
  engine.session->Discard(64);
  EXPECT_TRUE(TestFixture::AllMinusOne(*engine.session, kScratchBuffer));
  engine.session->Discard(1 << 30);  // more than there are: all
  EXPECT_EQ(engine.session->GetStats().discards, 2u);
  // A warm-up between a step's begin and its forward does not become the step.
  ASSERT_TRUE(engine.Begin(1, 8).ok());
  engine.Forward(engine.session->scratch_view(), 1, 8);
  engine.session->Discard(8);
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  engine.ExpectMissing(1, 8, Reason::kNotCaptured);
}

TYPED_TEST_P(CaptureContract, SelfTestNamesEveryLayerThatDoesNotCapture) {
  typename TestFixture::Engine engine;
  auto& session = *engine.session;
  constexpr auto kIds = static_cast<std::size_t>(TestFixture::kTopK);
  const auto good = [&](const CaptureView& view, std::int32_t rows) {
    engine.Forward(view, 1, rows);
    return absl::OkStatus();
  };
  for (const std::int32_t rows : {1, 5, 64}) {
    const auto report = RunSelfTest(session, rows, good).value();
    EXPECT_TRUE(report.ok()) << report.ToString();
    EXPECT_EQ(report.rows, rows);
    EXPECT_EQ(report.layers, TestFixture::kLayers);
  }
  // A warm-up that nobody discarded does not stand in for the silent layer.
  engine.Forward(session.scratch_view(), 9, 64);
  const auto report = RunSelfTest(session, 6, [&](const CaptureView& view, std::int32_t rows) {
    engine.Forward(view, 1, rows, 0);
    const std::vector<std::int16_t> zeros(static_cast<std::size_t>(rows) * kIds, 0);
    TypeParam::Write(view, 1, 0, zeros.data(), rows);
    const std::int16_t above[] = {1, 2, 64, 3};
    TypeParam::Write(view, 2, 4, above, 1);
    const std::int16_t twice[] = {1, 2, 3, 2, 5, 5, 6, 7};
    TypeParam::Write(view, 3, 2, twice, 2);
    return absl::OkStatus();
  });
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->findings.size(), 4u) << report->ToString();
  const LayerFault faults[] = {LayerFault::kSilent, LayerFault::kAllZero, LayerFault::kOutOfRange,
                               LayerFault::kRepeating};
  const std::int32_t rows_with[] = {6, 6, 1, 2};
  const std::int32_t first_rows[] = {0, 0, 4, 2};
  for (std::size_t i = 0; i < 4; ++i) {
    const LayerFinding& finding = report->findings[i];
    EXPECT_EQ(finding.layer, static_cast<std::int32_t>(i));
    EXPECT_EQ(finding.layer_id, session.shape().layer_id(static_cast<std::int32_t>(i)));
    EXPECT_EQ(finding.module, TestFixture::Engine::ModuleName(static_cast<std::int32_t>(i)));
    EXPECT_EQ(finding.fault, faults[i]) << LayerFaultName(finding.fault);
    EXPECT_EQ(finding.rows, rows_with[i]);
    EXPECT_EQ(finding.first_row, first_rows[i]);
    EXPECT_THAT(report->ToString(), ::testing::HasSubstr(finding.module));
  }
  EXPECT_TRUE(TestFixture::AllMinusOne(session, kScratchBuffer));

  EXPECT_FALSE(RunSelfTest(session, 0, good).ok());
  EXPECT_FALSE(RunSelfTest(session, 65, good).ok());
  const auto failed = RunSelfTest(session, 3, [&](const CaptureView& view, std::int32_t rows) {
    engine.Forward(view, 1, rows);
    return absl::InternalError("no device");
  });
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(TestFixture::AllMinusOne(session, kScratchBuffer));
}

REGISTER_TYPED_TEST_SUITE_P(CaptureContract, RowsLandExactly,
                            SilentLayerIsMissingInExactlyItsRowsAndNamed,
                            SilentRowsAreCountedInEveryStep, StaleIdsNeverComeBack,
                            RepeatedAndOutOfRangeIdsAreInvalid, DiscardedForwardsLeaveNothingBehind,
                            SelfTestNamesEveryLayerThatDoesNotCapture);

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_CAPTURE_CONTRACT_H_
