// What the staged transport promises beyond the contract of transports: what it costs the engine's
// thread, what a failing or hanging device does, one view at one address, several streams.
#include "plugin/capture/staged_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/contract/contract_engine.h"
#include "tests/support/emulated_device.h"
#include "tests/support/log_lines.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_seed.h"

namespace waymark {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Call = EmulatedDevice::Call;

// For ContractEngine; the device and the stream are those of the test at hand.
struct Traits {
  static inline std::shared_ptr<EmulatedDevice> device;
  static inline bool one_view = false;
  static inline DeviceStream stream = nullptr;

  static TransportFactory Factory() { return StagedTransport::Factory({device, one_view}); }
  static void Write(const CaptureView& view, std::int32_t layer, std::int32_t first_row,
                    const std::int16_t* ids, std::int32_t rows) {
    std::int16_t* const to =
        view.layer(layer) + static_cast<std::ptrdiff_t>(first_row) * view.top_k;
    std::vector<std::int16_t> copy(ids, ids + static_cast<std::ptrdiff_t>(rows) * view.top_k);
    device->Enqueue(stream, [to, copy = std::move(copy)] {
      if (!copy.empty()) std::memcpy(to, copy.data(), copy.size() * sizeof(std::int16_t));
    });
  }
};
struct Engine : ContractEngine<Traits> {
  using ContractEngine::ContractEngine;

  void Submit(std::uint64_t step) { ASSERT_TRUE(session->Submit(StepId(step)).ok()); }
  void RunAndExpectRows(std::uint64_t step, std::int32_t rows) {
    Run(step, rows);
    ExpectRows(step, rows);
  }
  void Use(DeviceStream stream) {
    Traits::stream = stream;
    session->SetStream(stream);
  }
};

class StagedTransportTest : public testing::Test {
 protected:
  void SetUp() override {
    TakeDevice(std::make_shared<EmulatedDevice>(TestSeed()));
    Traits::one_view = false;
    Traits::stream = nullptr;
  }
  void TearDown() override { TakeDevice(nullptr); }
  static void TakeDevice(std::shared_ptr<EmulatedDevice> device) {
    if (Traits::device != nullptr) {
      EXPECT_EQ(Emulated().outstanding(), 0) << "of the device's memory, streams and events";
    }
    Traits::device = std::move(device);
  }
  static EmulatedDevice& Emulated() { return *Traits::device; }

  // The calls of this thread since `before`.
  static EmulatedDevice::Counts Since(const EmulatedDevice::Counts& before) {
    EmulatedDevice::Counts since = Emulated().Calls();
    for (std::size_t i = 0; i < since.size(); ++i)
      since[i] -= before[i];
    return since;
  }
  static EmulatedDevice::Counts Only(std::initializer_list<Call> calls) {
    EmulatedDevice::Counts counts{};
    for (const Call call : calls)
      ++counts[static_cast<std::size_t>(call)];
    return counts;
  }
};

TEST_F(StagedTransportTest, NeedsADevice) {
  TransportOptions options;
  EXPECT_EQ(StagedTransport::Create(options, {}).status().message(),
            "StagedOptions.device: must not be null");
}

TEST_F(StagedTransportTest, AStepIsOneLaunchAndOneEventOnTheEnginesThread) {
  Engine engine({.landing = Landing::kThread});
  for (std::uint64_t step = 1; step <= 50; ++step) {
    const EmulatedDevice::Counts before = Emulated().Calls();
    ASSERT_TRUE(engine.Begin(step, 20, 24).ok());
    engine.Forward(step, 24);
    engine.Submit(step);
    EXPECT_EQ(Since(before), Only({Call::kPack, Call::kRecord})) << "step " << step;
    engine.SettleAndAwaitBuffers();
  }
  engine.ExpectRows(50, 20);
  // Dropped steps and steps that did not run: the view is cleared.
  const EmulatedDevice::Counts before = Emulated().Calls();
  ASSERT_TRUE(engine.Begin(51, 20).ok());
  ASSERT_TRUE(engine.session->Drop(StepId(51)).ok());
  EXPECT_EQ(Since(before), Only({Call::kStreamWait, Call::kPack, Call::kRecord}));
}

TEST_F(StagedTransportTest, AHandedOverLayerIsOneMoreLaunch) {
  Engine engine({.landing = Landing::kThread});
  const std::vector<std::int32_t> ids(8 * Engine::kTopK);
  ASSERT_TRUE(engine.Begin(1, 8).ok());
  const EmulatedDevice::Counts before = Emulated().Calls();
  const StepIds tensor = StepIds::OfLayer(ids.data(), IdType::kInt32, 8, Engine::kTopK);
  ASSERT_TRUE(engine.session->HandOver(engine.session->view(StepId(1)), 2, tensor).ok());
  EXPECT_EQ(Since(before), Only({Call::kCaptureIds}));
  ASSERT_TRUE(engine.session->Drop(StepId(1)).ok());
  Emulated().Synchronize();
}

// What clears a view is not captured into a graph, which would clear it whenever it is replayed, and
// would keep the event behind it. The view is cleared before the next step, which has no buffer as
// long as it cannot be. Bug: the event of the graph made the transport fail for good.
TEST_F(StagedTransportTest, WhatIsDroppedDuringACaptureIsClearedAfterIt) {
  for (const bool one_view : {false, true}) {
    Traits::one_view = one_view;
    Engine engine({.num_buffers = 1});
    const DeviceStream stream = *Emulated().CreateStream();
    engine.Use(stream);
    engine.Start(1, 9);
    Emulated().Capture(stream, true);
    const EmulatedDevice::Counts before = Emulated().Calls();
    ASSERT_TRUE(engine.session->Drop(StepId(1)).ok());
    engine.session->Discard(9);
    EXPECT_EQ(Since(before), EmulatedDevice::Counts{}) << one_view;
    EXPECT_FALSE(engine.Begin(2, 9).ok());
    Emulated().Capture(stream, false);
    ASSERT_TRUE(engine.Begin(3, 9).ok());
    engine.Forward(3, 9, 2);  // a layer is silent: not the ids of step 1
    engine.Submit(3);
    engine.ExpectMissing(3, 9, Reason::kNotCaptured);
    engine.SettleAndAwaitBuffers();
    engine.RunAndExpectRows(4, 9);
    engine.Use(nullptr);
    Emulated().DestroyStream(stream);
  }
  Traits::one_view = false;
}

// Of ranks that compute the same rows one stores. The others make the transport alone, and hand
// over to its scratch view: their graphs have the same launches.
TEST_F(StagedTransportTest, ARankThatDoesNotStoreEnqueuesTheSameInItsGraph) {
  const std::vector<std::int32_t> ids(8 * Engine::kTopK);
  const StepIds tensor = StepIds::OfLayer(ids.data(), IdType::kInt32, 8, Engine::kTopK);
  Traits::one_view = true;
  EmulatedDevice::Counts storing;
  {
    Engine engine;
    const EmulatedDevice::Counts before = Emulated().Calls();
    for (std::int32_t layer = 0; layer < Engine::kLayers; ++layer) {
      ASSERT_TRUE(engine.session->HandOver(engine.session->scratch_view(), layer, tensor).ok());
    }
    storing = Since(before);
  }
  TransportOptions options;
  options.shape = {
      .num_layers = Engine::kLayers, .top_k = Engine::kTopK, .num_experts = 64, .page_tokens = 8};
  options.max_rows = 64;
  options.num_buffers = 1;
  const auto alone = StagedTransport::Create(options, {Traits::device, true}).value();
  const EmulatedDevice::Counts before = Emulated().Calls();
  for (std::int32_t layer = 0; layer < Engine::kLayers; ++layer)
    alone->HandOver(kScratchBuffer, layer, tensor);
  EXPECT_EQ(Since(before), storing);
  EXPECT_EQ(EmulatedDevice::Of(storing, Call::kCaptureIds), Engine::kLayers);
  Emulated().Synchronize();
}

// A step that lands watches a word in memory and asks the driver once, when the word is there: the
// event that the question is about comes before the word on the stream. A word that came before the
// rows would be there too early, and cost more questions.
TEST_F(StagedTransportTest, LandingWatchesAWordAndAsksTheDriverOnce) {
  constexpr std::int64_t kSteps = 200;
  Engine engine;
  EmulatedDevice::Counts landing{};
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    engine.Run(step, 20);
    const EmulatedDevice::Counts before = Emulated().Calls();
    engine.Settle();
    const EmulatedDevice::Counts since = Since(before);
    for (std::size_t i = 0; i < since.size(); ++i)
      landing[i] += since[i];
    engine.ExpectRows(step, 20);
  }
  EXPECT_EQ(EmulatedDevice::Of(landing, Call::kCopyToHost), 2 * kSteps);
  EXPECT_EQ(EmulatedDevice::Of(landing, Call::kRecord), kSteps);
  EXPECT_GE(EmulatedDevice::Of(landing, Call::kQuery), kSteps);
  // One more where a step was interrupted for 50 ms.
  EXPECT_LE(EmulatedDevice::Of(landing, Call::kQuery), kSteps + kSteps / 10);
}

TEST_F(StagedTransportTest, AWordThatNeverArrivesCostsTimeAndNoRow) {
  Engine engine({.num_buffers = 2});
  Emulated().LoseWords(true);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    engine.RunAndExpectRows(step, 9);
  }
  Emulated().LoseWords(false);
  engine.RunAndExpectRows(4, 9);
}

// The engine turns to the legacy default stream while another stream is captured into a graph: no
// work can be enqueued there, and none is needed when the last use of the view is over. If it is
// not, the step is dropped, and the forward, which nothing orders behind the step before it, takes
// no wrong row with it. Either way the transport goes on.
TEST_F(StagedTransportTest, ADefaultStreamThatTakesNothingNowIsNoFailure) {
  Traits::one_view = true;
  for (const bool is_over : {true, false}) {
    Engine engine;
    const DeviceStream stream = *Emulated().CreateStream();
    engine.Use(stream);
    engine.Start(1, 9);
    if (!is_over) Emulated().Halt();
    engine.Submit(1);
    if (is_over) Emulated().Synchronize();
    Traits::stream = nullptr;
    Emulated().HoldDefaultStream(true);
    engine.session->SetStream(nullptr);
    EXPECT_EQ(engine.Begin(2, 9).ok(), is_over);
    EXPECT_TRUE(engine.session->status().ok()) << engine.session->status();
    Emulated().HoldDefaultStream(false);
    engine.Forward(engine.session->scratch_view(), 2, 9);
    Emulated().Go();
    if (is_over) {
      engine.Submit(2);
      engine.ExpectRows(1, 9);
      engine.ExpectRows(2, 9);
    } else {
      engine.ExpectMissing(1, 9, Reason::kNotCaptured);
      engine.ExpectMissing(2, 9, Reason::kCapacity);
    }
    engine.RunAndExpectRows(3, 9);
    engine.session.reset();
    Emulated().DestroyStream(stream);
  }
}

TEST_F(StagedTransportTest, NothingWaitsForADeviceThatDoesNotMove) {
  Engine engine({.landing = Landing::kThread, .num_buffers = 2});
  Emulated().Halt();
  for (std::uint64_t step = 1; step <= 2; ++step) {
    engine.Run(step, 9);
  }
  EXPECT_TRUE(engine.Begin(3, 9).dropped());  // the ring is full
  Emulated().Go();
  engine.ExpectRows(1, 9);
  engine.ExpectRows(2, 9);
  engine.ExpectMissing(3, 9, Reason::kCapacity);
}

TEST_F(StagedTransportTest, ADeviceThatFailsEndsEveryStepAndSaysWhy) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    TakeDevice(std::make_shared<EmulatedDevice>(TestSeed()));
    Engine engine({.landing = landing});
    engine.RunAndExpectRows(1, 9);

    Emulated().Halt();  // step 2 is on its way, step 3 open, when it happens
    engine.Run(2, 9);
    ASSERT_TRUE(engine.Begin(3, 9).ok());
    Emulated().Fail();
    engine.Submit(3);
    engine.ExpectMissing(2, 9, Reason::kNotCaptured);
    engine.ExpectMissing(3, 9, Reason::kNotCaptured);
    EXPECT_TRUE(engine.Begin(4, 9).dropped());
    engine.ExpectMissing(4, 9, Reason::kCapacity);
    engine.ExpectRows(1, 9);  // what has landed stays
    const absl::Status status = engine.session->status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_NE(std::string(status.message()).find("staged transport on emulated: "),
              std::string::npos)
        << status;
    engine.SettleAndAwaitBuffers();
  }
}

TEST_F(StagedTransportTest, AFailureIsToldOnceByWhoeverLands) {
  for (const Landing landing : {Landing::kCaller, Landing::kThread}) {
    LogLines logged;
    TakeDevice(std::make_shared<EmulatedDevice>(TestSeed()));
    // The thread says that step 3 was dropped, perhaps when session or engine goes.
    std::mutex mutex;
    const CaptureSession* session = nullptr;
    Engine engine({.landing = landing, .log = logged.callback()});
    session = engine.session.get();
    logged.meanwhile = [&] {  // the session holds no lock
      const std::lock_guard<std::mutex> lock(mutex);
      if (session != nullptr) (void)session->status();
    };
    ASSERT_TRUE(engine.Begin(1, 9).ok());
    ASSERT_TRUE(engine.Begin(2, 9).ok());
    Emulated().Fail();
    engine.Submit(1);  // finds it
    engine.Submit(2);
    if (landing == Landing::kCaller) {
      EXPECT_EQ(logged.lines().size(), 0u);
    }
    engine.SettleAndAwaitBuffers();
    const std::vector<LogLines::Line> lines = logged.lines();
    EXPECT_TRUE(engine.Begin(3, 9).dropped());
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(lines[0].level, LogLevel::kError);
    EXPECT_EQ(lines[0].text, std::string(engine.session->status().message()));
    EXPECT_EQ(lines[0].thread == std::this_thread::get_id(), landing == Landing::kCaller);
    {
      const std::lock_guard<std::mutex> lock(mutex);
      session = nullptr;
    }
    engine.session.reset();
    const auto is_error = [](const LogLines::Line& line) { return line.level == LogLevel::kError; };
    const std::vector<LogLines::Line> all = logged.lines();
    EXPECT_EQ(std::count_if(all.begin(), all.end(), is_error), 1);
  }
}

// After it nothing lands any more: the failure is told when somebody asks, or when the session
// goes.
TEST_F(StagedTransportTest, AFailureIsToldWhenNothingLands) {
  for (const bool asks : {true, false}) {
    LogLines logged;
    TakeDevice(std::make_shared<EmulatedDevice>(TestSeed()));
    Engine engine({.log = logged.callback()});
    ASSERT_TRUE(engine.Begin(1, 9).ok());
    Emulated().Fail();
    ASSERT_TRUE(engine.session->Drop(StepId(1)).ok());  // finds it
    EXPECT_TRUE(engine.Begin(2, 9).dropped());
    EXPECT_EQ(logged.lines().size(), 0u);
    if (asks) {
      EXPECT_FALSE(engine.session->status().ok());
      EXPECT_EQ(logged.lines().size(), 1u);
    }
    engine.session.reset();
    ASSERT_EQ(logged.lines().size(), 1u);
    EXPECT_NE(logged.lines()[0].text.find("could not clear a view: "), std::string::npos)
        << logged.lines()[0].text;
  }
}

TEST_F(StagedTransportTest, NothingIsToldOfATransportThatIsWell) {
  LogLines logged;
  Engine engine({.log = logged.callback()});
  engine.RunAndExpectRows(1, 9);
  EXPECT_TRUE(engine.session->status().ok());
  engine.session.reset();
  EXPECT_TRUE(logged.lines().empty()) << logged.lines()[0].text;
}

TEST_F(StagedTransportTest, TeardownWithStepsOnTheirWay) {
  for (const bool moves : {true, false}) {
    Engine engine({.landing = Landing::kThread});
    if (!moves) Emulated().Halt();
    for (std::uint64_t step = 1; step <= 3; ++step) {
      engine.Start(step, 12);
      if (step < 3) {
        engine.Submit(step);
      }
    }
    engine.session.reset();  // step 3 is dropped, the others land
    Emulated().Go();
    engine.ExpectRows(1, 12);
    engine.ExpectRows(2, 12);
    engine.ExpectMissing(3, 12, Reason::kCapacity);
  }
}

TEST_F(StagedTransportTest, CountsOfARefusedStepAreNotTheNextOnes) {
  Engine engine({.num_buffers = 1});
  engine.Start(1, 6, 2);
  // The store ends the step behind the session's back, and refuses it when it is submitted.
  ASSERT_TRUE(engine.store->Drop(StepId(1)).ok());
  EXPECT_FALSE(engine.session->Submit(StepId(1)).ok());
  engine.RunAndExpectRows(2, 6);
  EXPECT_EQ(engine.SilentRows(), 0u);
}

// A buffer whose last step was refused is cleared by the next one's Submit, which waits for the
// refused pack. Where the default stream takes no such wait, the step is not packed, and so its view
// was not set to -1: the ids came back as those of a silent layer of the step after it.
TEST_F(StagedTransportTest, AStepThatCouldNotBePackedLeavesNothingBehind) {
  Engine engine({.num_buffers = 1});
  engine.Start(1, 6);
  ASSERT_TRUE(engine.store->Drop(StepId(1)).ok());
  EXPECT_FALSE(engine.session->Submit(StepId(1)).ok());
  engine.Start(2, 6);
  Emulated().HoldDefaultStream(true);
  engine.Submit(2);
  engine.ExpectMissing(2, 6, Reason::kNotCaptured);
  Emulated().HoldDefaultStream(false);
  ASSERT_TRUE(engine.session->status().ok()) << engine.session->status();
  engine.Run(3, 6, 2);
  engine.ExpectMissing(3, 6, Reason::kNotCaptured);
  engine.SettleAndAwaitBuffers();
  engine.RunAndExpectRows(4, 6);
}

// The forward of a step that was dropped or cancelled before it ran writes into the scratch view,
// which is the view of the next step, too.
TEST_F(StagedTransportTest, OneViewKeepsNothingOfAForwardAfterItsStepsEnd) {
  Traits::one_view = true;
  for (const bool cancels : {false, true}) {
    Engine engine({.num_buffers = 1});
    CaptureSession& session = *engine.session;
    ASSERT_TRUE(engine.Begin(1, 8, 64).ok());
    ASSERT_TRUE((cancels ? session.Cancel(StepId(1)) : session.Drop(StepId(1))).ok());
    engine.Forward(1, 64);
    engine.Run(2, 40, 3);
    engine.ExpectMissing(2, 40, Reason::kNotCaptured);
    engine.SettleAndAwaitBuffers();
    engine.RunAndExpectRows(3, 40);
  }
}

// A graph writes where it was captured, and always as many rows: 512 of which 300 count, a step
// that finds no buffer, a step that is cancelled. What they leave must not pass for the rows of an
// eager step that follows, in a layer that it does not write.
TEST_F(StagedTransportTest, OneViewKeepsNothingOfAGraphsPadding) {
  Traits::one_view = true;
  for (int before = 0; before < 4; ++before) {
    Engine engine({.max_rows = 512, .num_buffers = 1});
    CaptureSession& session = *engine.session;
    const CaptureView captured = session.scratch_view();
    std::uint64_t step = 0;
    const auto graph = [&](std::uint64_t of) { engine.Forward(captured, of, 512); };
    if (before == 0) {
      ASSERT_TRUE(engine.Begin(++step, 300, 512).ok());
      ASSERT_EQ(session.view(StepId(step)).data, captured.data);
      graph(step);
      engine.Submit(step);
      engine.ExpectRows(step, 300);
    } else if (before == 1) {
      ASSERT_TRUE(engine.Begin(++step, 300, 512).ok());
      graph(step);
      engine.Submit(step);  // and has not landed
      ASSERT_TRUE(engine.Begin(++step, 300, 512).dropped());
      graph(step);
      engine.ExpectRows(1, 300);
      engine.ExpectMissing(2, 300, Reason::kCapacity);
    } else if (before == 2) {
      ASSERT_TRUE(engine.Begin(++step, 300, 512).ok());
      graph(step);
      ASSERT_TRUE(session.Cancel(StepId(step)).ok());
    } else {
      graph(9);  // a warm-up
      session.Discard(512);
    }
    engine.Run(++step, 400, 1);
    engine.ExpectMissing(step, 400, Reason::kNotCaptured);
    EXPECT_EQ(session.GetStats().layers[1].rows_silent, 400u) << "after " << before;
    EXPECT_EQ(engine.SilentRows(), 400u);
    engine.SettleAndAwaitBuffers();
    // And the step after that is whole again.
    ASSERT_TRUE(engine.Begin(++step, 400).ok());
    engine.Forward(captured, step, 400);
    engine.Submit(step);
    engine.ExpectRows(step, 400);
    engine.SettleAndAwaitBuffers();
  }
}

TEST_F(StagedTransportTest, OneViewIsNotSharedByTwoOpenSteps) {
  Traits::one_view = true;
  Engine engine;
  ASSERT_TRUE(engine.Begin(1, 8).ok());
  ASSERT_TRUE(engine.Begin(2, 8).dropped());
  engine.Forward(engine.session->scratch_view(), 1, 8);
  engine.Forward(engine.session->scratch_view(), 2, 8);  // over the rows of step 1
  engine.Submit(1);
  engine.ExpectMissing(1, 8, Reason::kNotCaptured);
  engine.ExpectMissing(2, 8, Reason::kCapacity);
  engine.RunAndExpectRows(3, 8);
}

TEST_F(StagedTransportTest, OneViewIsNotSharedWithADummyForward) {
  Traits::one_view = true;
  Engine engine;
  engine.Start(1, 8);
  engine.Forward(engine.session->scratch_view(), 7, 8);
  engine.session->Discard(8);
  engine.Submit(1);
  engine.ExpectMissing(1, 8, Reason::kNotCaptured);
}

TEST_F(StagedTransportTest, StreamsTakeTurnsWithOneView) {
  for (const bool one_view : {true, false}) {
    TakeDevice(std::make_shared<EmulatedDevice>(TestSeed() + (one_view ? 1 : 0)));
    Traits::one_view = one_view;
    std::vector<DeviceStream> streams;
    for (int i = 0; i < 3; ++i)
      streams.push_back(*Emulated().CreateStream());
    Engine engine({.landing = Landing::kThread, .num_buffers = 3});
    std::uint64_t step = 0;
    for (int round = 0; round < 100; ++round) {
      engine.Use(streams[static_cast<std::size_t>(round % 3)]);
      if (!engine.Begin(++step, 16).ok()) {
        engine.Forward(step, 16);  // all the same
        if (round % 2 == 0) engine.SettleAndAwaitBuffers();
        continue;
      }
      engine.Forward(step, 16, round % 5 == 0 ? 2 : -1);
      engine.Submit(step);
      if (round % 5 == 0) {
        engine.ExpectMissing(step, 16, Reason::kNotCaptured);
      } else if (round % 2 == 0) {
        engine.ExpectRows(step, 16);
      }
    }
    engine.SettleAndAwaitBuffers();
    engine.session.reset();
    for (const DeviceStream stream : streams)
      Emulated().DestroyStream(stream);
  }
}

// A graph is captured on one stream while a step is on its way on another, and then that stream has
// the next step: it did not wait for the pack, which read that step's ids as those of the first.
TEST_F(StagedTransportTest, AStreamThatWasInCaptureWaitsForTheLastStep) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    TakeDevice(std::make_shared<EmulatedDevice>(TestSeed() + seed));
    Traits::one_view = true;
    const DeviceStream streams[] = {*Emulated().CreateStream(), *Emulated().CreateStream()};
    {
      Engine engine;
      CaptureSession& session = *engine.session;
      const std::vector<std::int16_t> ids(8 * Engine::kTopK);
      engine.Use(streams[0]);
      engine.Run(1, 8);
      engine.Use(streams[1]);
      Emulated().Capture(streams[1], true);
      const StepIds tensor = StepIds::OfLayer(ids.data(), IdType::kInt16, 8, Engine::kTopK);
      ASSERT_TRUE(session.HandOver(session.scratch_view(), 0, tensor).ok());
      Emulated().Capture(streams[1], false);
      engine.RunAndExpectRows(2, 8);
      engine.ExpectRows(1, 8);
      engine.SettleAndAwaitBuffers();
    }
    Traits::stream = nullptr;
    for (const DeviceStream stream : streams)
      Emulated().DestroyStream(stream);
  }
}

// One view, steps and other forwards that take turns between streams. Each flight is another order
// of the device.
class OneViewOnStreams : public StagedTransportTest {
 protected:
  static constexpr std::uint64_t kFlights = PlainOr(300, 60);
  static constexpr std::int32_t kRows = 8;

  // Runs `flight` once per seed, with two streams.
  template <class Flight>
  void Fly(std::int32_t num_buffers, Flight flight) {
    for (std::uint64_t seed = TestSeed(); seed < TestSeed() + kFlights && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      TakeDevice(std::make_shared<EmulatedDevice>(seed));
      Traits::one_view = true;
      streams_ = {*Emulated().CreateStream(), *Emulated().CreateStream()};
      {
        Engine engine({.num_buffers = num_buffers});
        flight(engine);
        engine.SettleAndAwaitBuffers();
      }
      for (const DeviceStream stream : streams_)
        Emulated().DestroyStream(stream);
    }
  }
  void Use(Engine& engine, int stream) { engine.Use(streams_[static_cast<std::size_t>(stream)]); }
  // Rows may be missing; those that are valid are what `step` routed.
  static void ExpectNoOtherRows(Engine& engine, std::uint64_t step) {
    const Rows read = engine.Read(step, kRows);
    for (std::int32_t row = 0; row < kRows; ++row) {
      if (read.infos[static_cast<std::size_t>(row)].valid()) {
        ASSERT_TRUE(engine.IsRow(read, step, row));
      }
    }
  }

 private:
  std::array<DeviceStream, 2> streams_{};
};

// The forward of a step that was dropped at its begin ran on the new stream before the pack of the
// step before it, on the old one: that step came back with the ids of the dropped one.
TEST_F(OneViewOnStreams, TheForwardOfADroppedStepWaitsForThePacksBeforeIt) {
  Fly(1, [this](Engine& engine) {
    Use(engine, 0);
    engine.Run(1, kRows);
    Use(engine, 1);
    ASSERT_TRUE(engine.Begin(2, kRows).dropped());  // no staging buffer is free
    engine.Forward(2, kRows);
    engine.ExpectRows(1, kRows);
    engine.ExpectMissing(2, kRows, Reason::kCapacity);
  });
  Fly(3, [this](Engine& engine) {
    Use(engine, 0);
    engine.Run(1, kRows);
    engine.Start(2, kRows);
    Use(engine, 1);
    ASSERT_TRUE(engine.Begin(3, kRows).dropped());  // step 2 has the view
    engine.Forward(3, kRows);
    engine.Submit(2);
    engine.ExpectRows(1, kRows);
    engine.ExpectMissing(2, kRows, Reason::kNotCaptured);
  });
}

// So did a forward outside any step, which a graph runs without a call of the session.
TEST_F(OneViewOnStreams, ADummyForwardWaitsForThePacksBeforeIt) {
  Fly(2, [this](Engine& engine) {
    const CaptureView captured = engine.session->scratch_view();
    Use(engine, 0);
    engine.Run(1, kRows);
    Use(engine, 1);
    engine.Forward(captured, 9, kRows);
    engine.session->Discard(kRows);
    engine.ExpectRows(1, kRows);
  });
}

// Nor does a step on another stream wait for a pack or an event of such a forward: it has none. The
// forward wrote over the ids of the steps behind it.
TEST_F(OneViewOnStreams, StepsWaitForTheForwardOfADroppedStep) {
  Fly(2, [this](Engine& engine) {
    Use(engine, 0);
    engine.Start(1, kRows);
    Use(engine, 1);
    ASSERT_TRUE(engine.Begin(2, kRows).dropped());  // step 1 has the view
    engine.Forward(2, kRows);
    Use(engine, 0);
    engine.Submit(1);
    engine.RunAndExpectRows(3, kRows);
    engine.ExpectMissing(1, kRows, Reason::kNotCaptured);
  });
  Fly(2, [this](Engine& engine) {  // a forward that comes after the end of its step
    Use(engine, 0);
    ASSERT_TRUE(engine.Begin(1, kRows).ok());
    ASSERT_TRUE(engine.session->Drop(StepId(1)).ok());
    engine.Forward(1, kRows);
    Use(engine, 1);
    engine.RunAndExpectRows(2, kRows);
  });
}

// The stream takes no order now (another one is captured into a graph), so the forward of the step
// that is dropped for it may run before any pack that is on its way: of those steps no row lands.
// It was the last of them alone.
TEST_F(OneViewOnStreams, AForwardThatNothingOrdersLeavesNoRowOfStepsOnTheirWay) {
  Fly(4, [this](Engine& engine) {
    Use(engine, 0);
    engine.Run(1, kRows);
    engine.Run(2, kRows);
    Emulated().HoldDefaultStream(true);
    engine.Use(nullptr);
    const bool dropped = engine.Begin(3, kRows).dropped();
    Emulated().HoldDefaultStream(false);
    engine.Forward(3, kRows);
    if (!dropped) {  // what was on its way is over
      engine.Submit(3);
      engine.ExpectRows(3, kRows);
    }
    ExpectNoOtherRows(engine, 1);
    ExpectNoOtherRows(engine, 2);
  });
}

// The stream of a dropped step is in capture when the engine turns to another one: no event can be
// recorded behind its forward before the capture ends. A step that cannot be ordered before that
// has a second such forward, on another stream: the transport ends, and says so.
TEST_F(OneViewOnStreams, AForwardOnAStreamInCaptureIsWaitedForLater) {
  for (const bool capture_ends : {true, false}) {
    Fly(2, [&](Engine& engine) {
      Use(engine, 0);
      engine.Start(1, kRows);
      Use(engine, 1);
      const DeviceStream captured = Traits::stream;
      ASSERT_TRUE(engine.Begin(2, kRows).dropped());  // step 1 has the view
      engine.Forward(2, kRows);
      Emulated().Capture(captured, true);
      Use(engine, 0);
      engine.Submit(1);
      if (capture_ends) {
        Emulated().Capture(captured, false);
        engine.RunAndExpectRows(3, kRows);
        ASSERT_TRUE(engine.session->status().ok()) << engine.session->status();
      } else {
        ASSERT_TRUE(engine.Begin(3, kRows).dropped());
        engine.Forward(3, kRows);
        ASSERT_EQ(engine.session->status().message(),
                  "staged transport on emulated: forwards of dropped steps are on two streams, one "
                  "of which is in capture");
        Emulated().Capture(captured, false);
      }
      engine.ExpectMissing(1, kRows, Reason::kNotCaptured);
    });
  }
}

TEST_F(StagedTransportTest, FailsWhenMemoryCannotBeHad) {
  struct Small : EmulatedDevice {
    using EmulatedDevice::EmulatedDevice;
    absl::StatusOr<void*> AllocatePinned(std::size_t bytes) override {
      if (left-- == 0) return absl::ResourceExhaustedError("no room for " + std::to_string(bytes));
      return EmulatedDevice::AllocatePinned(bytes);
    }
    int left = 2;
  };
  const auto device = std::make_shared<Small>(TestSeed());
  TransportOptions options;
  options.shape = {.num_layers = 3, .top_k = 2, .num_experts = 8, .page_tokens = 4};
  options.max_rows = 10;
  options.num_buffers = 4;
  EXPECT_EQ(StagedTransport::Create(options, {device}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device->outstanding(), 0);
}

// ---- the end of a transport whose device hangs

class StagedTeardownTest : public StagedTransportTest {
 protected:
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
    LogLines logged;
    Engine engine(
        {.landing = landing, .log = logged.callback(), .teardown_timeout = milliseconds(20)});
    engine.Run(1, 12);
    engine.SettleAndAwaitBuffers();
    Traits::device->Hang();
    engine.Run(2, 12);
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

TEST_F(StagedTeardownTest, BuffersOutliveATransportWhoseDeviceHangs) {
  LogLines logged;
  Engine engine({.log = logged.callback(), .teardown_timeout = milliseconds(20)});
  Traits::device->Hang();
  engine.Start(1, 12);
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
  engine.Run(1, 12);
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
