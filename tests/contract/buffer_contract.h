// Who has which buffer, and that each comes back: ring, teardown, sessions side by side.
#ifndef WAYMARK_TESTS_CONTRACT_BUFFER_CONTRACT_H_
#define WAYMARK_TESTS_CONTRACT_BUFFER_CONTRACT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/contract/transport_fixture.h"

namespace waymark {

template <class Traits>
class BufferContract : public TransportFixture<Traits> {};

TYPED_TEST_SUITE_P(BufferContract);

// The transport by itself, without a session: what CaptureSession relies on.
TYPED_TEST_P(BufferContract, BuffersAreDistinctAndClean) {
  typename TestFixture::Engine engine({.num_buffers = 3});
  Transport& transport = engine.session->transport();
  EXPECT_TRUE(transport.healthy());
  EXPECT_TRUE(transport.status().ok());
  for (int round = 0; round < 3; ++round) {
    std::vector<BufferId> buffers;
    for (int i = 0; i < 3; ++i)
      buffers.push_back(transport.Acquire());
    EXPECT_THAT(buffers, ::testing::UnorderedElementsAre(0, 1, 2));
    EXPECT_EQ(transport.Acquire(), kNoBuffer);
    EXPECT_EQ(transport.in_use(), 3);
    for (const BufferId buffer : buffers) {
      const CaptureView view = transport.View(buffer);
      EXPECT_EQ(view.buffer, buffer);
      EXPECT_EQ(view.max_rows, 64);
      EXPECT_EQ(view.num_layers, TestFixture::kLayers);
      EXPECT_EQ(view.top_k, TestFixture::kTopK);
      EXPECT_TRUE(TestFixture::AllMinusOne(*engine.session, buffer));
      engine.Forward(view, 5, 64);
      transport.Release(buffer, 64);
    }
    EXPECT_EQ(transport.in_use(), 0);
  }
}

TYPED_TEST_P(BufferContract, TwoMicroBatchesHaveDisjointBuffers) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    typename TestFixture::Engine engine({.landing = landing});
    ASSERT_TRUE(engine.Begin(1, 30).ok());
    ASSERT_TRUE(engine.Begin(2, 40).ok());
    const CaptureView first = engine.session->view(StepId(1));
    const CaptureView second = engine.session->view(StepId(2));
    EXPECT_NE(first.buffer, second.buffer);
    // Layer by layer, in turn, from two threads; submitted in the other order.
    std::thread other([&] { engine.Forward(second, 2, 40); });
    engine.Forward(first, 1, 30);
    other.join();
    ASSERT_TRUE(engine.session->Submit(StepId(2)).ok());
    ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
    engine.ExpectRows(1, 30);
    engine.ExpectRows(2, 40);
  }
}

TYPED_TEST_P(BufferContract, FullRingDropsTheStepAndCountsIt) {
  typename TestFixture::Engine engine({.num_buffers = 2});
  ASSERT_TRUE(engine.Begin(1, 4).ok());
  ASSERT_TRUE(engine.Begin(2, 4).ok());
  engine.Forward(1, 4);
  engine.Forward(2, 4);
  const StepCode code = engine.Begin(3, 4);
  EXPECT_TRUE(code.dropped());
  EXPECT_EQ(code.rule, StepRule::kRingFull);
  EXPECT_EQ(engine.session->view(StepId(3)).buffer, kScratchBuffer);
  engine.Forward(3, 4);  // as if nothing had happened
  // It has ended already.
  EXPECT_EQ(engine.session->Submit(StepId(3)).rule, StepRule::kStepNotInFlight);
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  ASSERT_TRUE(engine.session->Submit(StepId(2)).ok());
  // Submitted is not landed: still full.
  EXPECT_TRUE(engine.Begin(4, 4).dropped());
  engine.Settle();
  engine.Run(5, 4);
  for (const std::uint64_t step : {1, 2, 5})
    engine.ExpectRows(step, 4);
  for (const std::uint64_t step : {3, 4})
    engine.ExpectMissing(step, 4, Reason::kCapacity);
  const CaptureStats stats = engine.session->GetStats();
  EXPECT_EQ(stats.steps_without_buffer, 2u);
  EXPECT_EQ(stats.steps_dropped, 2u);
  EXPECT_EQ(stats.steps_begun, 5u);
  EXPECT_EQ(stats.steps_submitted, 3u);
  EXPECT_EQ(engine.store->GetStats().steps_dropped, 2u);
  EXPECT_EQ(engine.session->transport().in_use(), 0);
}

// The store can be the one that has no room: no buffer must be lost over that.
TYPED_TEST_P(BufferContract, StepThatTheStoreDropsTakesNoBuffer) {
  typename TestFixture::Engine engine({.num_buffers = 4, .max_steps_in_flight = 1});
  ASSERT_TRUE(engine.Begin(1, 4).ok());
  for (std::uint64_t step = 2; step < 12; ++step)
    ASSERT_TRUE(engine.Begin(step, 4).dropped());
  EXPECT_EQ(engine.session->transport().in_use(), 1);
  EXPECT_EQ(engine.session->GetStats().steps_without_buffer, 0u);
  EXPECT_EQ(engine.session->GetStats().steps_dropped, 10u);
  ASSERT_TRUE(engine.session->Drop(StepId(1)).ok());
  EXPECT_EQ(engine.session->transport().in_use(), 0);
  // A batch that the store refuses takes none either.
  EXPECT_EQ(engine.Begin(1, 4).rule, StepRule::kStepNotIncreasing);
  EXPECT_EQ(engine.session->transport().in_use(), 0);
}

TYPED_TEST_P(BufferContract, TeardownWithPendingStepsIsSafe) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    typename TestFixture::Engine engine({.landing = landing});
    for (const std::uint64_t step : {1, 2, 3}) {
      engine.Start(step, 50);
    }
    ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
    ASSERT_TRUE(engine.session->Submit(StepId(3)).ok());
    engine.session.reset();  // 2 is open; 1 and 3 are submitted, and perhaps landed
    engine.ExpectRows(1, 50);
    engine.ExpectMissing(2, 50, Reason::kCapacity);
    engine.ExpectRows(3, 50);
  }
  // Nobody lands them: the store's end is theirs.
  typename TestFixture::Engine engine;
  const std::vector<std::int16_t> ids = engine.Ids(2, 8, true);
  std::atomic<int> done{0};
  ASSERT_TRUE(engine.Begin(1, 8).ok());
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  ASSERT_TRUE(engine.BeginIds(2, 8).ok());
  ASSERT_TRUE(
      engine.session
          ->SubmitIds(StepId(2),
                      StepIds::TokenMajor(ids.data(), IdType::kInt16, 8, engine.session->shape()),
                      {&TestFixture::CountCall, &done})
          .ok());
  ASSERT_TRUE(engine.Begin(3, 8).ok());
  engine.session.reset();
  engine.store.reset();
  EXPECT_EQ(done, 1);
}

TYPED_TEST_P(BufferContract, TwoSessionsShareOneStore) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    typename TestFixture::Engine engine({.landing = landing, .num_buffers = 2});
    const auto other = engine.MakeSession();
    for (std::uint64_t step = 1; step <= 20; step += 2) {
      ASSERT_TRUE(engine.Begin(*engine.session, step, 10).ok());
      ASSERT_TRUE(engine.Begin(*other, step + 1, 20).ok());
      engine.Forward(engine.session->view(StepId(step)), step, 10);
      engine.Forward(other->view(StepId(step + 1)), step + 1, 20, step == 5 ? 2 : -1);
      // A step of one is unknown to the other.
      EXPECT_EQ(other->Submit(StepId(step)).rule, StepRule::kStepNotInFlight);
      ASSERT_TRUE(other->Submit(StepId(step + 1)).ok());
      ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
      engine.ExpectRows(step, 10);
      if (step == 5) {
        engine.ExpectMissing(step + 1, 20, Reason::kNotCaptured);
      } else {
        engine.ExpectRows(step + 1, 20);
      }
      engine.SettleAndAwaitBuffers();
    }
    EXPECT_EQ(engine.SilentRows(), 0u);
    EXPECT_EQ(other->GetStats().layers[2].rows_silent, 20u);
  }
}

REGISTER_TYPED_TEST_SUITE_P(BufferContract, BuffersAreDistinctAndClean,
                            TwoMicroBatchesHaveDisjointBuffers, FullRingDropsTheStepAndCountsIt,
                            StepThatTheStoreDropsTakesNoBuffer, TeardownWithPendingStepsIsSafe,
                            TwoSessionsShareOneStore);

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_BUFFER_CONTRACT_H_
