// The end of a staged transport whose device hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "plugin/capture/staged_transport.h"
#include "tests/contract/contract_engine.h"
#include "tests/support/emulated_device.h"
#include "tests/support/log_lines.h"
#include "tests/unit/blockstore/test_seed.h"

namespace waymark {
namespace {

// For ContractEngine.
struct Traits {
  static inline std::shared_ptr<EmulatedDevice> device;

  static TransportFactory Factory() { return StagedTransport::Factory({device}); }
  static void Write(const CaptureView& view, std::int32_t layer, std::int32_t first_row,
                    const std::int16_t* ids, std::int32_t rows) {
    std::int16_t* const to =
        view.layer(layer) + static_cast<std::ptrdiff_t>(first_row) * view.top_k;
    std::vector<std::int16_t> copy(ids, ids + static_cast<std::ptrdiff_t>(rows) * view.top_k);
    device->Enqueue(nullptr, [to, copy = std::move(copy)] {
      std::memcpy(to, copy.data(), copy.size() * sizeof(std::int16_t));
    });
  }
};
using Engine = ContractEngine<Traits>;

using std::chrono::milliseconds;
using testing::HasSubstr;

class StagedTeardownTest : public testing::Test {
 protected:
  void SetUp() override { Traits::device = std::make_shared<EmulatedDevice>(TestSeed()); }
  void TearDown() override { Traits::device.reset(); }

  // What was given up is freed when the device goes on.
  static void GoAndExpectFreed() {
    EXPECT_GT(Traits::device->outstanding(), 0);
    Traits::device->Go();
    while (Traits::device.use_count() != 1)
      std::this_thread::yield();
    EXPECT_EQ(Traits::device->outstanding(), 0);
  }
};

// The forward of a step hangs, e.g. in a collective. The step's buffers are read and written by the
// device after store, session and transport are gone.
TEST_F(StagedTeardownTest, BuffersOutliveAStepThatTheStoreGivesUp) {
  for (const Landing landing : {Landing::kThread, Landing::kCaller}) {
    for (const bool device_slots : {false, true}) {
      LogLines logged;
      Engine engine(
          {.landing = landing, .log = logged.callback(), .teardown_timeout = milliseconds(20)});
      ASSERT_TRUE(engine.Begin(1, 12).ok());
      engine.Forward(1, 12);
      ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
      engine.SettleAndAwaitBuffers();
      Traits::device->Hang();
      std::vector<std::int64_t> slots;
      if (device_slots) {
        ASSERT_TRUE(engine.BeginDeviceSlots(2, 12).ok());
        engine.Forward(2, 12);
        slots = engine.batch().slots;
        ASSERT_TRUE(engine.session->SubmitDeviceSlots(StepId(2), slots.data(), 12).ok());
      } else {
        ASSERT_TRUE(engine.Begin(2, 12).ok());
        engine.Forward(2, 12);
        ASSERT_TRUE(engine.session->Submit(StepId(2)).ok());
      }
      const auto snapshot = engine.store->TakeSnapshot(engine.blocks(2), 0, 12).value();
      engine.session.reset();
      engine.store.reset();
      ASSERT_TRUE(snapshot.Wait(milliseconds(0)).ok());
      const Rows rows = snapshot.ReadRows().value();
      for (const RowInfo& info : rows.infos)
        EXPECT_EQ(info.reason, Reason::kNotCaptured);
      ASSERT_EQ(logged.lines().size(), 2u);
      // The transport ends with the last step of the store.
      EXPECT_THAT(logged.lines()[0].text, HasSubstr("bytes stay allocated until it has"));
      EXPECT_THAT(logged.lines()[1].text,
                  HasSubstr("the ids of 1 submitted steps (the first one is step 2)"));
      GoAndExpectFreed();
    }
  }
}

TEST_F(StagedTeardownTest, BuffersOutliveATransportWhoseDeviceHangs) {
  LogLines logged;
  Engine engine({.log = logged.callback(), .teardown_timeout = milliseconds(20)});
  Traits::device->Hang();
  ASSERT_TRUE(engine.Begin(1, 12).ok());
  engine.Forward(1, 12);
  engine.session.reset();  // drops step 1
  ASSERT_EQ(logged.lines().size(), 1u);
  EXPECT_EQ(logged.lines()[0].level, LogLevel::kError);
  EXPECT_THAT(logged.lines()[0].text,
              HasSubstr("staged transport on emulated: the device has not"));
  engine.ExpectMissing(1, 12, Reason::kCapacity);
  engine.store.reset();
  GoAndExpectFreed();
  EXPECT_EQ(logged.lines().size(), 1u);
}

TEST_F(StagedTeardownTest, ADeviceThatIsOnlySlowKeepsNothing) {
  LogLines logged;
  Engine engine({.landing = Landing::kThread, .log = logged.callback()});
  Traits::device->Hang();
  ASSERT_TRUE(engine.Begin(1, 12).ok());
  engine.Forward(1, 12);
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  const auto snapshot = engine.store->TakeSnapshot(engine.blocks(1), 0, 12).value();
  std::thread device([] {
    std::this_thread::sleep_for(milliseconds(20));
    Traits::device->Go();
  });
  engine.session.reset();
  engine.store.reset();
  device.join();
  const Rows read = snapshot.ReadRows().value();
  for (std::int32_t row = 0; row < 12; ++row)
    EXPECT_TRUE(engine.IsRow(read, 1, row));
  EXPECT_TRUE(logged.lines().empty());
  EXPECT_EQ(Traits::device.use_count(), 1);
  EXPECT_EQ(Traits::device->outstanding(), 0);
}

}  // namespace
}  // namespace waymark
