// How steps end, and which calls are answered with a code.
#ifndef WAYMARK_TESTS_CONTRACT_STEP_CONTRACT_H_
#define WAYMARK_TESTS_CONTRACT_STEP_CONTRACT_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "tests/contract/transport_fixture.h"
#include "tests/support/test_seed.h"

namespace waymark {

template <class Traits>
class StepContract : public TransportFixture<Traits> {};

TYPED_TEST_SUITE_P(StepContract);

TYPED_TEST_P(StepContract, DroppedAndCancelledStepsSaySo) {
  typename TestFixture::Engine engine;
  for (const std::uint64_t step : {1, 2}) {
    engine.Start(step, 5);
  }
  ASSERT_TRUE(engine.session->Drop(StepId(1)).ok());
  ASSERT_TRUE(engine.session->Cancel(StepId(2)).ok());
  engine.ExpectMissing(1, 5, Reason::kCapacity);
  engine.ExpectMissing(2, 5, Reason::kNeverWritten);
  // The cancelled rows run again.
  ASSERT_TRUE(engine.BeginAgain(3, 2, 5).ok());
  engine.Forward(3, 5);
  ASSERT_TRUE(engine.session->Submit(StepId(3)).ok());
  engine.ExpectRows(3, 5);
  const CaptureStats stats = engine.session->GetStats();
  EXPECT_EQ(stats.steps_dropped, 1u);
  EXPECT_EQ(stats.steps_cancelled, 1u);
  EXPECT_EQ(engine.session->transport().in_use(), 0);
}

TYPED_TEST_P(StepContract, StepsWithoutRowsPass) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    typename TestFixture::Engine engine({.landing = landing, .num_buffers = 1});
    std::uint64_t step = 0;
    // Nothing at all; and a dummy batch of padding only, as data-parallel ranks run.
    for (const std::int32_t written : {0, 16, 0, 64}) {
      ++step;
      engine.Run(step, 0, -1, written);
      engine.SettleAndAwaitBuffers();
    }
    ++step;
    ASSERT_TRUE(engine.Begin(step, 64).ok());
    ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
    engine.ExpectMissing(step, 64, Reason::kNotCaptured);
  }
}

TYPED_TEST_P(StepContract, TheAuditComparesTheLayersThatWereWritten) {
  typename TestFixture::Engine engine;
  std::uint64_t step = 0;
  for (const std::int32_t silent_layer : {-1, 0, 4}) {
    ASSERT_TRUE(engine.Begin(++step, 16).ok());
    engine.Forward(step, 16);
    ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
    engine.ExpectRows(step, 16);
    ASSERT_TRUE(engine.BeginAgain(step + 1, step, 16, /*sealed=*/true).ok());
    engine.Forward(step + 1, 16, silent_layer);
    ASSERT_TRUE(engine.session->Submit(StepId(step + 1)).ok());
    engine.ExpectMissing(step, 16, Reason::kAudit);
    // Without a layer that was written there is nothing to compare.
    engine.Run(step + 2, 8);
    ASSERT_TRUE(engine.BeginAgain(step + 3, step + 2, 8, /*sealed=*/true).ok());
    ASSERT_TRUE(engine.session->Submit(StepId(step + 3)).ok());
    engine.ExpectRows(step + 2, 8);
    step += 3;
  }
}

TYPED_TEST_P(StepContract, TooManyRowsAreRefused) {
  typename TestFixture::Engine engine({.max_rows = 16});
  EXPECT_EQ(engine.Begin(1, 17).rule, StepRule::kTooManyRows);
  EXPECT_EQ(engine.Begin(1, 4, 17).rule, StepRule::kTooManyRows);
  EXPECT_EQ(engine.Begin(1, 4, -1).rule, StepRule::kTooManyRows);
  ASSERT_TRUE(engine.Begin(1, 16, 16).ok());
  EXPECT_EQ(engine.session->Submit(StepId(1), 17).rule, StepRule::kTooManyRows);
  engine.Forward(1, 16);
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
}

TYPED_TEST_P(StepContract, UnknownStepsAnswerACode) {
  typename TestFixture::Engine engine;
  std::atomic<int> done{0};
  const auto all_refused = [&](std::uint64_t step) {
    EXPECT_EQ(engine.session->Submit(StepId(step)).rule, StepRule::kStepNotInFlight);
    EXPECT_EQ(engine.session->Drop(StepId(step)).rule, StepRule::kStepNotInFlight);
    EXPECT_EQ(engine.session->Cancel(StepId(step)).rule, StepRule::kStepNotInFlight);
    EXPECT_EQ(engine.session->view(StepId(step)).buffer, kScratchBuffer);
    const StepIds ids = StepIds::TokenMajor(nullptr, IdType::kInt16, 0, engine.session->shape());
    const int before = done;
    EXPECT_EQ(engine.session->SubmitIds(StepId(step), ids, {&TestFixture::CountCall, &done}).rule,
              StepRule::kStepNotInFlight);
    EXPECT_EQ(done, before + 1);
  };
  all_refused(0);
  all_refused(9);
  engine.Run(9, 3);
  EXPECT_EQ(engine.session->Submit(StepId(9)).rule, StepRule::kStepNotInFlight);
  engine.ExpectRows(9, 3);
  all_refused(9);
  // Ended behind the session's back: the buffer comes home all the same.
  ASSERT_TRUE(engine.Begin(10, 3).ok());
  ASSERT_TRUE(engine.store->Drop(StepId(10)).ok());
  EXPECT_FALSE(engine.session->Submit(StepId(10)).ok());
  EXPECT_EQ(engine.session->transport().in_use(), 0);
}

// Everything at once, over a landing thread: what a row is follows from its step's end alone.
TYPED_TEST_P(StepContract, RandomStepsOverALandingThread) {
  std::mt19937_64 random(DrawnSeed());
  typename TestFixture::Engine engine(
      {.landing = Landing::kThread, .max_rows = 128, .num_buffers = 3, .num_blocks = 20000});
  struct Step {
    std::int32_t rows = 0;
    std::int32_t silent_layer = -1;
    Reason reason = Reason::kNone;
  };
  std::map<std::uint64_t, Step> steps;
  std::vector<std::uint64_t> open;
  std::uint64_t next = 1;
  const auto end_one = [&] {
    const std::size_t at = random() % open.size();
    const std::uint64_t step = open[at];
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    Step& of = steps[step];
    switch (random() % 8) {
      case 0:
        ASSERT_TRUE(engine.session->Drop(StepId(step)).ok());
        of.reason = Reason::kCapacity;
        break;
      case 1:
        ASSERT_TRUE(engine.session->Cancel(StepId(step)).ok());
        of.reason = Reason::kNeverWritten;
        break;
      default:
        ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
        if (of.silent_layer >= 0) of.reason = Reason::kNotCaptured;
        break;
    }
  };
  for (int i = 0; i < 600; ++i) {
    const std::uint64_t number = next++;
    Step step;
    step.rows = static_cast<std::int32_t>(random() % 100);
    const auto written = step.rows + static_cast<std::int32_t>(random() % 28);
    if (random() % 3 == 0) step.silent_layer = static_cast<std::int32_t>(random() % 5);
    const StepCode code = engine.Begin(number, step.rows, written);
    if (code.dropped()) {
      step.reason = Reason::kCapacity;
      engine.Forward(number, written);
    } else {
      ASSERT_TRUE(code.ok()) << code.ToStatus();
      engine.Forward(number, written, step.silent_layer);
      open.push_back(number);
    }
    steps[number] = step;
    while (open.size() > random() % 3)
      end_one();
  }
  while (!open.empty())
    end_one();
  for (const auto& [number, step] : steps) {
    if (step.rows == 0) continue;
    if (step.reason == Reason::kNone) {
      engine.ExpectRows(number, step.rows);
    } else {
      engine.ExpectMissing(number, step.rows, step.reason);
    }
    if (::testing::Test::HasFailure()) return;
  }
  engine.SettleAndAwaitBuffers();
}

REGISTER_TYPED_TEST_SUITE_P(StepContract, DroppedAndCancelledStepsSaySo, StepsWithoutRowsPass,
                            TheAuditComparesTheLayersThatWereWritten, TooManyRowsAreRefused,
                            UnknownStepsAnswerACode, RandomStepsOverALandingThread);

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_STEP_CONTRACT_H_
