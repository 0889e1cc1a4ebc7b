// FlightRecorder: the last of a flight, in fixed memory, from a checkpoint that needs no store's
// help.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "blockstore/flight/check.h"
#include "blockstore/flight/recorder.h"
#include "blockstore/store/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/failing_new.h"
#include "tests/support/sanitizers.h"
#include "tests/unit/blockstore/flight/flight_sim.h"
#include "tests/unit/blockstore/flight/removals.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

// A recorder of an engine's store.
std::unique_ptr<FlightRecorder> Record(const sim::EngineOptions& options,
                                       const RecorderOptions& ring) {
  return FlightRecorder::Create(sim::StoreOptionsOf(options, 0), ring).value();
}

// Absorbs by hand after every step, and dumps now and then.
void FlyAndDump(bool megatron, const std::string& features, FlightRows rows, std::uint64_t seed) {
  SCOPED_TRACE(features + (megatron ? " megatron" : " vllm") + " seed " + std::to_string(seed));
  sim::EngineOptions options = SimOptions(megatron, features, seed);
  constexpr std::size_t kRing = 64 * 1024;
  const auto recorder = Record(options, {.ring_bytes = kRing, .rows = rows, .background = false});
  options.flights = {recorder->sink()};
  auto engine = sim::Engine::Create(options).value();
  std::uint64_t checkpoints = 0;
  std::uint64_t judged = 0;
  for (int step = 1; step <= 400; ++step) {
    engine->Step();
    ASSERT_TRUE(recorder->ReplayOldest().ok());
    if (step % 20 != 0) continue;
    std::string dump;
    const absl::Status status = recorder->DumpTo(dump);
    ASSERT_TRUE(status.ok()) << status;
    const FlightReport verdict = Check(dump);
    EXPECT_TRUE(verdict.clean()) << "dump at step " << step;
    EXPECT_FALSE(verdict.truncated);
    EXPECT_FALSE(verdict.incomplete);
    EXPECT_LE(verdict.last_step, static_cast<std::uint64_t>(step));
    EXPECT_GE(verdict.last_step + 16, static_cast<std::uint64_t>(step)) << "later ones wait";
    for (const ReadDifference& difference : verdict.differences) {
      ADD_FAILURE() << difference.ToString();
    }
    EXPECT_LT(dump.size(), 3 * kRing);
    if (!verdict.from_checkpoint) continue;
    ++checkpoints;
    judged += verdict.rows_right;
    EXPECT_GT(verdict.steps, 10u);
  }
  EXPECT_GT(checkpoints, 3u);
  EXPECT_GT(judged, 300u);
  EXPECT_EQ(recorder->stopped(), "");
}

TEST(FlightRecorder, DumpsOfTheRingAreRight) {
  for (const char* features :
       {"", "draft=.5 late=1 preempt=.05", "swap=.5 tier=.3 fork=.1 partial=.3",
        "drop=.05 cancel=.03 draft=.4 reset=.02", "bump=.05 full_hit=.4 stream=.2"}) {
    FlyAndDump(false, features, FlightRows::kDigests, 5);
    FlyAndDump(true, features, FlightRows::kDigests, 6);
  }
  FlyAndDump(false, "draft=.5 stream=.2", FlightRows::kIds, 7);
}

TEST(FlightRecorder, DumpsOfAnEngineThatRunsAheadAreRight) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    FlyAndDump(seed % 2 == 0, "behind=3 shuffle=1 draft=.4 truncate_delay=2", FlightRows::kDigests,
               seed);
  }
}

// A checkpoint carries what the events before it did: a Bind that was forgotten after it is still
// found by rows from before it.
TEST(FlightRecorder, ABindForgottenAfterTheCheckpointIsIndicted) {
  sim::EngineOptions options = SimOptions(false, "", 9);
  const auto recorder =
      Record(options, {.ring_bytes = 48 * 1024, .rows = FlightRows::kIds, .background = false});
  options.flights = {recorder->sink()};
  auto engine = sim::Engine::Create(options).value();
  for (int step = 0; step < 300; ++step) {
    engine->Step();
    ASSERT_TRUE(recorder->ReplayOldest().ok());
  }
  std::string dump;
  ASSERT_TRUE(recorder->DumpTo(dump).ok());
  FlightReader reader = Reader(dump);
  const auto verdict = CheckFlight(reader).value();
  EXPECT_TRUE(verdict.from_checkpoint);
  const Removals removals = RemovingBinds(reader).All();
  EXPECT_GT(removals.harmful, 5u);
  EXPECT_GE(removals.PartOfHarmful(removals.found), 0.9);
}

TEST(FlightRecorder, TheSinkAllocatesNothing) {
  sim::EngineOptions sizes = SimOptions(false, "", 1);
  const StoreOptions store = sim::StoreOptionsOf(sizes, 0);
  const auto recorder = Record(sizes, {.ring_bytes = 64 * 1024, .background = false});
  const std::vector<Event> events = {Event::Bind(BlockId(1)), Event::Retain(BlockId(1))};
  const std::vector<std::int64_t> slots = {4, 5, 6};
  const std::vector<std::uint8_t> ids(slots.size() * store.shape.row_bytes(), 1);
  const std::vector<Reason> verdicts(slots.size(), Reason::kNone);
  const std::vector<BlockId> blocks = {BlockId(1)};
  const std::vector<RowInfo> infos(3);
  const std::vector<std::uint64_t> digests(3);
  FailAllocation(0);
  for (std::uint64_t step = 1; step <= 2000; ++step) {
    FlightSink& sink = *recorder->sink();
    sink.On({.kind = FlightRecordKind::kSchedule, .step = step, .version = 1});
    sink.On({.kind = FlightRecordKind::kEvents, .events = events});
    sink.On({.kind = FlightRecordKind::kStep, .step = step, .version = 1, .slots = slots});
    PutLanded(sink, step, ids, verdicts);
    sink.On({.kind = FlightRecordKind::kSnapshot, .read_id = step, .last = 3, .blocks = blocks});
    sink.On({.kind = FlightRecordKind::kRead, .read_id = step, .infos = infos, .digests = digests});
    sink.On({.kind = FlightRecordKind::kReleased, .read_id = step});
    if (step % 10 != 0) continue;
    EXPECT_EQ(AllocationsSeen(), 0u);
    ASSERT_TRUE(recorder->ReplayOldest().ok());
    FailAllocation(0);
  }
  EXPECT_EQ(AllocationsSeen(), 0u);
  EXPECT_EQ(recorder->stopped(), "");
}

// Hashes rows where nobody waits for them: the sink is given the rows when they are in their pages,
// without the store's lock, and before the step ends.
TEST(FlightSink, RowsComeBeforeTheEndOfTheirStepAndWithoutTheLock) {
  class Rows final : public StepRows {
   public:
    void Land(std::uint32_t /*first*/, std::span<std::uint8_t* const> destinations,
              std::span<Reason> verdicts) override {
      for (std::size_t i = 0; i < destinations.size(); ++i)
        verdicts[i] = Reason::kNone;
      ++calls;
    }
    void Done() override { done = true; }
    int calls = 0;
    bool done = false;
  } rows;
  class Sink final : public FlightSink {
   public:
    void OnRows(std::uint64_t step, std::span<const std::uint8_t> /*ids*/,
                std::span<const Reason> verdicts) override {
      EXPECT_EQ(verdicts.size(), 1u);
      EXPECT_EQ(rows->calls, 1) << "for the page and for the sink";
      EXPECT_EQ(store->GetStats().steps_landed, 0u);  // takes the lock
      EXPECT_FALSE(snapshot.Ready());
      given = step;
    }
    void On(const FlightEntry& entry) override {
      if (entry.kind != FlightRecordKind::kLanded) return;
      EXPECT_EQ(given, entry.step);
      EXPECT_FALSE(snapshot.Ready());
      landed = entry.step;
    }
    Rows* rows = nullptr;
    RoutingStore* store = nullptr;
    Snapshot snapshot;
    std::uint64_t given = 0;
    std::uint64_t landed = 0;
  } sink;
  StoreOptions options = sim::StoreOptionsOf(SimOptions(false, "", 1), 0);
  options.landing = Landing::kCaller;
  options.flight = {std::shared_ptr<void>(), &sink};
  auto store = RoutingStore::Create(options);
  ASSERT_TRUE(store.ok()) << store.status();
  sink.rows = &rows;
  sink.store = store->get();
  const std::vector<Event> events = {Event::Bind(BlockId(3))};
  const std::vector<std::int64_t> slots = {3 * (*store)->options().block_tokens};
  ASSERT_TRUE((*store)->BeginStep({1, 1, events.data(), 1, slots.data(), 1}).ok());
  const std::vector<BlockId> blocks = {BlockId(3)};
  sink.snapshot = *(*store)->TakeSnapshot(blocks, 0, 1);
  ASSERT_TRUE((*store)->Submit(StepId(1), &rows).ok());
  ASSERT_TRUE((*store)->Land(StepId(1)));
  EXPECT_EQ(sink.landed, 1u);
  EXPECT_TRUE(sink.snapshot.Ready() && rows.done);
  sink.snapshot = Snapshot();
}

// The thread absorbs while the sink records, readers read and somebody dumps.
TEST(FlightRecorder, DumpsWhileTheEngineRuns) {
  sim::EngineOptions options = SimOptions(false, "draft=.4 stream=.2", 21);
  options.timing.landing = Landing::kThread;
  // On a machine with other work, a sanitizer's engine runs far ahead of the recorder's thread.
  const auto recorder = Record(options, {.ring_bytes = PlainOr<std::size_t>(256, 2048) * 1024});
  options.flights = {recorder->sink()};
  std::atomic<bool> done{false};
  std::uint64_t dumps = 0;
  std::thread dumper([&] {
    while (!done.load()) {
      std::string dump;
      const absl::Status status = recorder->DumpTo(dump);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_FALSE(Check(dump).has_missed_event());
      ++dumps;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  {
    auto engine = sim::Engine::Create(options).value();
    for (int i = 0; i < 60; ++i) {
      engine->Run(10);
      // The recorder's thread must get its turn, or the ring is full.
      std::this_thread::sleep_for(std::chrono::milliseconds(PlainOr(3, 15)));
    }
    engine->Finish();
  }
  done = true;
  dumper.join();
  EXPECT_GT(dumps, 0u);
  EXPECT_EQ(recorder->stopped(), "");
}

TEST(FlightRecorder, StopsWithAWordWhenARecordDoesNotFit) {
  sim::EngineOptions sizes = SimOptions(false, "", 1);
  const auto recorder = Record(sizes, {.ring_bytes = 32 * 1024, .background = false});
  const std::vector<Event> many(600, Event::Bind(BlockId(1)));
  FlightSink& sink = *recorder->sink();
  sink.On({.kind = FlightRecordKind::kStep, .step = 1});
  sink.On({.kind = FlightRecordKind::kLanded, .step = 1});
  sink.On({.kind = FlightRecordKind::kEvents, .events = many});
  EXPECT_THAT(recorder->stopped(), HasSubstr("did not fit a segment of 4096 bytes"));
  sink.On({.kind = FlightRecordKind::kStep, .step = 2});
  std::string dump;
  ASSERT_TRUE(recorder->DumpTo(dump).ok());
  const FlightReport verdict = Check(dump);
  EXPECT_TRUE(verdict.incomplete);
  EXPECT_EQ(verdict.last_step, 1u);
}

TEST(FlightRecorder, StopsWithAWordWhenNobodyAbsorbs) {
  sim::EngineOptions sizes = SimOptions(false, "", 1);
  const auto recorder = Record(sizes, {.ring_bytes = 32 * 1024, .background = false});
  for (std::uint64_t step = 1; step <= 2000; ++step) {
    recorder->sink()->On({.kind = FlightRecordKind::kStep, .step = step});
    recorder->sink()->On({.kind = FlightRecordKind::kLanded, .step = step});
  }
  EXPECT_THAT(recorder->stopped(), HasSubstr("full"));
  std::string dump;
  ASSERT_TRUE(recorder->DumpTo(dump).ok());
  EXPECT_TRUE(Check(dump).incomplete);
}

TEST(FlightRecorder, RefusesARingThatIsTooSmall) {
  sim::EngineOptions sizes = SimOptions(false, "", 1);
  RecorderOptions ring;
  ring.ring_bytes = 1000;
  const auto recorder = FlightRecorder::Create(sim::StoreOptionsOf(sizes, 0), ring);
  EXPECT_EQ(recorder.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(recorder.status().message(), HasSubstr("1000"));
}

}  // namespace
}  // namespace waymark
