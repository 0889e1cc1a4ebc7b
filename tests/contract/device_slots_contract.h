// Steps whose slots are known on the device only: they come along with the rows.
#ifndef WAYMARK_TESTS_CONTRACT_DEVICE_SLOTS_CONTRACT_H_
#define WAYMARK_TESTS_CONTRACT_DEVICE_SLOTS_CONTRACT_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/contract/transport_fixture.h"

namespace waymark {

template <class Traits>
class DeviceSlotsContract : public TransportFixture<Traits> {
 protected:
  static std::vector<std::uint8_t> Bytes(const std::vector<std::int64_t>& slots) {
    std::vector<std::uint8_t> bytes(slots.size() * sizeof(std::int64_t));
    if (!bytes.empty()) std::memcpy(bytes.data(), slots.data(), bytes.size());
    return bytes;
  }
  // Their memory is gone when the call has returned.
  static void Submit(typename TransportFixture<Traits>::Engine& engine, std::uint64_t step,
                     const std::vector<std::int64_t>& slots, std::int32_t written_rows = 0) {
    const typename Traits::Array array(Bytes(slots));
    const auto* const data = static_cast<const std::int64_t*>(array.data());
    const auto rows = static_cast<std::int32_t>(slots.size());
    ASSERT_TRUE(engine.session->SubmitDeviceSlots(StepId(step), data, rows, written_rows).ok());
  }
};

TYPED_TEST_SUITE_P(DeviceSlotsContract);

// Row i of the forward is row i of the sequence in all but two of the steps' rows: one is padding,
// one lies where the batch did not say that the step might write.
TYPED_TEST_P(DeviceSlotsContract, RowsLandWhereTheStepWroteThem) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    typename TestFixture::Engine engine({.landing = landing});
    for (std::uint64_t step = 1; step <= 12; ++step) {
      constexpr std::int32_t kRows = 20;
      ASSERT_TRUE(engine.BeginDeviceSlots(step, kRows).ok());
      std::vector<std::int64_t> slots = engine.batch().slots;
      const auto written = static_cast<std::int32_t>(step + 4);
      slots.resize(static_cast<std::size_t>(written));
      slots[1] = kPaddingSlot;
      slots[3] = 4095 * TestFixture::Engine::kPage;  // of a block of nobody's
      engine.Forward(step, written);
      TestFixture::Submit(engine, step, slots);
      engine.ExpectRowsWhere(step, kRows, Reason::kNeverWritten, [&](std::int32_t row) {
        return row < written && row != 1 && row != 3;
      });
      engine.SettleAndAwaitBuffers();
    }
    EXPECT_EQ(engine.store->GetStats().rows_outside, 12u);
    EXPECT_EQ(engine.SilentRows(), 0u);
  }
}

TYPED_TEST_P(DeviceSlotsContract, CallsThatDoNotFitTheStepAreRefused) {
  typename TestFixture::Engine engine;
  const typename TypeParam::Array array(TestFixture::Bytes({0, 1}));
  const auto* const slots = static_cast<const std::int64_t*>(array.data());
  auto& session = *engine.session;
  ASSERT_TRUE(engine.BeginDeviceSlots(1, 9).ok());
  EXPECT_EQ(session.Submit(StepId(1)).rule, StepRule::kDeviceSlots);
  EXPECT_EQ(session.SubmitDeviceSlots(StepId(1), nullptr, 2).rule, StepRule::kDeviceSlots);
  const auto* misaligned =
      reinterpret_cast<const std::int64_t*>(reinterpret_cast<const char*>(slots) + 4);
  EXPECT_EQ(session.SubmitDeviceSlots(StepId(1), misaligned, 1).rule, StepRule::kDeviceSlots);
  EXPECT_EQ(session.SubmitDeviceSlots(StepId(1), slots, -1).rule, StepRule::kTooManyRows);
  EXPECT_EQ(session.SubmitDeviceSlots(StepId(1), slots, 65).rule, StepRule::kTooManyRows);
  EXPECT_FALSE(session.SubmitDeviceSlots(StepId(1), slots, 2, -1).ok());
  EXPECT_EQ(session.SubmitDeviceSlots(StepId(1), slots, 2, 65).rule, StepRule::kTooManyRows);
  EXPECT_EQ(session.SubmitDeviceSlots(StepId(2), slots, 2).rule, StepRule::kStepNotInFlight);
  EXPECT_TRUE(session.SubmitDeviceSlots(StepId(1), nullptr, 0).ok());
  ASSERT_TRUE(engine.Begin(3, 2).ok());
  EXPECT_EQ(session.SubmitDeviceSlots(StepId(3), slots, 2).rule, StepRule::kDeviceSlots);
  EXPECT_TRUE(session.Drop(StepId(3)).ok());
  engine.Prepare(4, 2);
  OwnedStepBatch batch = engine.batch();
  batch.device_slots = true;
  EXPECT_EQ(session.BeginIdsStep(batch.view()).rule, StepRule::kDeviceSlots);
  engine.SettleAndAwaitBuffers();
}

// Who does not say how many rows the forward wrote, padding included, may have written all of the
// view: a step that was submitted without the padding left its ids behind for a silent layer of the
// next.
TYPED_TEST_P(DeviceSlotsContract, StaleIdsNeverComeBack) {
  constexpr std::int32_t kPadded = 64;
  constexpr std::int32_t kValid = 5;
  constexpr std::int32_t kRows = 40;
  // What is said of the padding: nothing, or how many rows there were, at either end of the step.
  for (const auto& [at_begin, at_submit] : {std::pair(0, 0), {kPadded, 0}, {0, kPadded}}) {
    SCOPED_TRACE(::testing::Message() << at_begin << ", " << at_submit);
    typename TestFixture::Engine engine({.max_rows = kPadded, .num_buffers = 1});
    for (std::uint64_t step = 1; step <= 6; step += 2) {
      for (const bool silent : {false, true}) {
        const std::uint64_t now = step + (silent ? 1 : 0);
        ASSERT_TRUE(engine.BeginDeviceSlots(now, kRows, at_begin).ok());
        std::vector<std::int64_t> slots = engine.batch().slots;
        if (!silent) slots.resize(kValid);
        if (silent) {
          engine.Forward(now, kRows, static_cast<std::int32_t>(step) % TestFixture::kLayers);
        } else {
          engine.Forward(now, kPadded);
        }
        TestFixture::Submit(engine, now, slots, silent ? 0 : at_submit);
        if (silent) engine.ExpectMissing(now, kRows, Reason::kNotCaptured);
        engine.SettleAndAwaitBuffers();
      }
    }
  }
}

// A device step lands in order of steps, so one that was submitted behind an open step is left when
// the store goes: its end waited for ever.
TYPED_TEST_P(DeviceSlotsContract, TeardownBehindAnOpenStepLandsWhatWasSubmitted) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    typename TestFixture::Engine engine({.landing = landing});
    ASSERT_TRUE(engine.BeginIds(1, 4).ok());  // the session leaves it open
    ASSERT_TRUE(engine.BeginDeviceSlots(2, 8).ok());
    const std::vector<std::int64_t> slots = engine.batch().slots;
    const std::vector<BlockId> blocks = {
        BlockId(static_cast<std::int32_t>(slots[0] / TestFixture::Engine::kPage))};
    engine.Forward(2, 8);
    TestFixture::Submit(engine, 2, slots);
    auto snapshot = engine.store->TakeSnapshot(blocks, 0, 8).value();
    engine.session.reset();
    engine.store.reset();
    ASSERT_TRUE(snapshot.Wait(std::chrono::nanoseconds(0)).ok());
    const auto read = snapshot.ReadRows().value();
    for (std::int32_t row = 0; row < 8; ++row)
      EXPECT_TRUE(engine.IsRow(read, 2, row));
  }
}

REGISTER_TYPED_TEST_SUITE_P(DeviceSlotsContract, RowsLandWhereTheStepWroteThem,
                            CallsThatDoNotFitTheStepAreRefused, StaleIdsNeverComeBack,
                            TeardownBehindAnOpenStepLandsWhatWasSubmitted);

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONTRACT_DEVICE_SLOTS_CONTRACT_H_
