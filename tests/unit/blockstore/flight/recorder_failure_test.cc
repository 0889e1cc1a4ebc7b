// A flight recorder without memory: recording ends, with a reason, and the engine goes on.
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/flight/recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/failing_new.h"
#include "tests/support/log_lines.h"
#include "tests/unit/blockstore/flight/flight_sim.h"

namespace waymark {
namespace {

using ::testing::HasSubstr;

// An engine with a recorder whose ring is about to be replayed.
struct Flight {
  explicit Flight(bool background, LogCallback log = {}) {
    sim::EngineOptions options = SimOptions(false, "fork=.2 partial=.3 draft=.3 late=1", 3);
    RecorderOptions ring;
    ring.ring_bytes = 48 * 1024;
    ring.background = background;
    ring.log = log;
    recorder = FlightRecorder::Create(sim::StoreOptionsOf(options, 0), ring).value();
    options.flights = {recorder->sink()};
    engine = sim::Engine::Create(options).value();
  }
  void Fly(int steps) {
    for (int step = 0; step < steps; ++step)
      engine->Step();
  }
  // Flies until the ring has two segments to replay.
  void FillRing() {
    for (int step = 0; step < 60; ++step) {
      Fly(1);
      ASSERT_TRUE(recorder->ReplayOldest().ok());
    }
    Fly(12);
    ASSERT_EQ(recorder->stopped(), "");
  }

  std::unique_ptr<FlightRecorder> recorder;
  std::unique_ptr<sim::Engine> engine;
};

// The status of a replay and of a dump with the n-th allocation failing; how many there were.
std::uint64_t ReplayAndDump(FlightRecorder& recorder, std::uint64_t n, bool and_all_after,
                            absl::Status& replayed, absl::Status& dumped, std::string& dump) {
  FailAllocation(n, and_all_after);
  replayed = recorder.ReplayOldest();
  dumped = recorder.DumpTo(dump);
  const std::uint64_t seen = AllocationsSeen();
  FailAllocation(0);
  return seen;
}

TEST(RecorderFailure, NoMemoryEndsTheRecordingWithAReason) {
  std::uint64_t allocations = 0;
  {
    Flight flight(false);
    flight.FillRing();
    absl::Status replayed, dumped;
    std::string dump;
    allocations = ReplayAndDump(*flight.recorder, 0, false, replayed, dumped, dump);
    ASSERT_TRUE(replayed.ok()) << replayed;
    ASSERT_TRUE(dumped.ok()) << dumped;
    EXPECT_TRUE(Check(dump).clean());
  }
  EXPECT_GT(allocations, 50u);
  int stopped = 0;
  int dumps = 0;
  for (const bool and_all_after : {false, true}) {
    for (std::uint64_t n = 1; n <= allocations + 2 && !testing::Test::HasFailure(); ++n) {
      SCOPED_TRACE(absl::StrCat("allocation ", n, and_all_after ? " and all after" : ""));
      Flight flight(false);
      flight.FillRing();
      absl::Status replayed, dumped;
      std::string dump = "before";
      ReplayAndDump(*flight.recorder, n, and_all_after, replayed, dumped, dump);
      if (dumped.ok()) {
        EXPECT_TRUE(Check(dump.substr(6)).clean());
      } else {
        EXPECT_EQ(dump, "before");
        EXPECT_TRUE(absl::IsResourceExhausted(dumped) || absl::IsDataLoss(dumped)) << dumped;
      }
      // A replay that failed has ended the recording; a dump that failed has not.
      const std::string why = flight.recorder->stopped();
      if (!replayed.ok()) {
        EXPECT_TRUE(absl::IsResourceExhausted(replayed) || absl::IsDataLoss(replayed)) << replayed;
        EXPECT_NE(why, "");
      }
      stopped += why.empty() ? 0 : 1;
      flight.Fly(5);
      std::string again;
      const absl::Status status = flight.recorder->DumpTo(again);
      EXPECT_EQ(status.ok(), why.empty()) << status;
      if (status.ok()) {
        EXPECT_TRUE(Check(again).clean());
      }
      dumps += status.ok() ? 1 : 0;
    }
  }
  EXPECT_GT(stopped, 20);
  EXPECT_GT(dumps, 5);
}

TEST(RecorderFailure, ItsThreadLogsOnceWhyRecordingHasStopped) {
  LogLines lines;
  const Flight flight(true, lines.callback());
  const std::vector<BlockId> blocks(5000, BlockId(1));
  for (int i = 0; i < 3; ++i) {  // longer than a segment
    flight.recorder->sink()->On(
        {.kind = FlightRecordKind::kSnapshot, .read_id = 1, .last = 1, .blocks = blocks});
  }
  for (int tries = 0; tries < 2000 && lines.lines().empty(); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(lines.lines().size(), 1u);
  EXPECT_EQ(lines.lines()[0].level, LogLevel::kError);
  EXPECT_THAT(lines.lines()[0].text, HasSubstr("did not fit a segment"));
}

TEST(RecorderFailure, NoMemoryDoesNotEndItsThread) {
  Flight flight(true);
  flight.FillRing();
  // The engine itself needs memory, so the ring is filled before the thread wakes: it naps 20 ms.
  // If it wakes too late the ring is emptied here: a full ring would end the recording as well.
  std::string why;
  for (int tries = 0; tries < 2000 && why.empty(); ++tries) {
    (void)flight.recorder->ReplayOldest();
    flight.Fly(12);
    FailAllocation(1, true);
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    FailAllocation(0);
    why = flight.recorder->stopped();
  }
  EXPECT_THAT(why, testing::AnyOf("no memory", HasSubstr("replay")));
  flight.Fly(5);
  std::string dump;
  EXPECT_FALSE(flight.recorder->DumpTo(dump).ok());
}

}  // namespace
}  // namespace waymark
