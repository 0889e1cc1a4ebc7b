// A store's thread that gets no core: the engine goes on, rows are missing, and none is wrong.
//
// The thread is stopped where it does most harm, and goes on only when the engine has run all of
// its steps: if a call of the engine waited for it, the test would hang.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <latch>
#include <memory>
#include <optional>

#include "tests/conformance/direct.h"
#include "tests/conformance/flight_dump.h"

namespace waymark::conformance {
namespace {

constexpr std::int32_t kBlocks = 64;
constexpr std::uint64_t kLife = 8;  // steps from the first row of a block to its snapshot

// Stops a thread at the first call of MaybeStop() after Arm(), until Release().
class Stop {
 public:
  void Arm() { armed_.store(true); }
  void MaybeStop() {
    if (!armed_.exchange(false)) return;
    stopped_.count_down();
    released_.wait();
  }
  void WaitUntilStopped() { stopped_.wait(); }
  void Release() { released_.count_down(); }

 private:
  std::atomic<bool> armed_{false};
  std::latch stopped_{1}, released_{1};
};

// Stops the thread that applies the log, with the store's lock.
class StoppingSink final : public FlightDump {
 public:
  StoppingSink(Stop& stop, std::FILE* file, std::size_t row_bytes)
      : FlightDump(file, row_bytes), stop_(stop) {}
  void On(const FlightEntry& entry) override {
    if (entry.kind == FlightRecordKind::kStep) stop_.MaybeStop();
    FlightDump::On(entry);
  }

 private:
  Stop& stop_;
};

class DoneRows final : public StepRows {
 public:
  explicit DoneRows(int tag) : rows_(std::vector<int>(kDirectBlock, tag)) {}
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    rows_.Land(first, destinations, verdicts);
  }
  void Done() override { done.store(true); }
  std::atomic<bool> done{false};

 private:
  TagRows rows_;
};

// Each step fills a new block; its request ends kLife steps later.
class Engine {
 public:
  explicit Engine(RoutingStore& store) : store_(store) {}

  void Step() {
    const std::uint64_t step = ++step_;
    if (step > kLife) Finish(step - kLife);
    const std::int32_t block = BlockOf(step);
    const Event bind = Event::Bind(BlockId(block));
    std::vector<std::int64_t> slots;
    for (std::int64_t offset = 0; offset < kDirectBlock; ++offset)
      slots.push_back(Direct::Slot(block, offset));
    const StepCode code = store_.BeginStep({step, 1, &bind, 1, slots.data(), slots.size()});
    refused_ += code.ok() ? 0 : 1;
    if (!code.ok()) {
      EXPECT_TRUE(code.dropped()) << code.ToStatus();
      return;
    }
    rows_.push_back(std::make_unique<DoneRows>(TagOf(step)));
    (void)store_.Submit(StepId(step), rows_.back().get());
  }
  void FinishAll() {
    for (std::uint64_t step = step_ - kLife + 1; step <= step_; ++step)
      Finish(step);
  }

  // Reads all snapshots. Rows of steps from `since` on must be there.
  void Check(std::uint64_t since) {
    for (const auto& [step, snapshot] : taken_) {
      if (!snapshot.has_value()) {
        EXPECT_LT(step, since) << "a snapshot was refused";
        continue;
      }
      ASSERT_TRUE(snapshot->Wait(std::chrono::seconds(60)).ok()) << "step " << step;
      for (const Seen& row : Direct::Read(*snapshot)) {
        if (row.info.valid()) {
          EXPECT_EQ(row.tag, TagOf(step)) << "step " << step;
          EXPECT_EQ(row.info.step, step);
          ++valid;
        } else {
          EXPECT_EQ(row.info.reason, Reason::kCapacity) << "step " << step;
          EXPECT_LT(step, since) << "a row is missing";
          ++missing;
        }
      }
    }
    for (const auto& rows : rows_)
      EXPECT_TRUE(rows->done.load());
  }

  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] int refused() const { return refused_; }
  int valid = 0, missing = 0;

 private:
  static std::int32_t BlockOf(std::uint64_t step) {
    return static_cast<std::int32_t>(step % kBlocks);
  }
  static int TagOf(std::uint64_t step) { return static_cast<int>(step % 251); }
  void Finish(std::uint64_t step) {
    const BlockId block(BlockOf(step));
    absl::StatusOr<Snapshot> snapshot = store_.TakeSnapshot({&block, 1}, 0, kDirectBlock);
    std::optional<Snapshot> taken;
    if (snapshot.ok()) taken = *std::move(snapshot);
    taken_.emplace_back(step, std::move(taken));
    const Event release = Event::Release(block);
    (void)store_.Report({&release, 1});
  }

  RoutingStore& store_;
  std::uint64_t step_ = 0;
  int refused_ = 0;
  std::vector<std::unique_ptr<DoneRows>> rows_;
  std::vector<std::pair<std::uint64_t, std::optional<Snapshot>>> taken_;
};

struct Outcome {
  Stats stats;
  int refused, valid, missing;
};

Outcome RunStarved(std::size_t log_bytes, int steps) {
  Stop stop;
  std::FILE* const nowhere = std::fopen("/dev/null", "w");
  StoreOptions options = Direct::Options();
  StoppingSink sink(stop, nowhere, options.shape.row_bytes());
  options.flight = {std::shared_ptr<void>(), &sink};
  options.landing = Landing::kThread;
  options.num_blocks = kBlocks;
  options.num_pages = 8192;  // snapshots wait with their pages
  options.max_step_rows = 8;
  options.log_bytes = log_bytes;
  std::unique_ptr<RoutingStore> store = RoutingStore::Create(options).value();
  Engine engine(*store);
  const auto run = [&](int count) {
    for (int i = 0; i < count; ++i) {
      engine.Step();
      if (i % 8 != 7) continue;
      EXPECT_TRUE(store->WaitIdle(std::chrono::seconds(60)).ok());
    }
  };
  run(64);
  stop.Arm();
  engine.Step();
  stop.WaitUntilStopped();
  for (int i = 0; i < steps; ++i)
    engine.Step();
  stop.Release();
  EXPECT_TRUE(store->WaitIdle(std::chrono::seconds(60)).ok());
  engine.Step();  // the poison record is appended now at the latest
  EXPECT_TRUE(store->WaitIdle(std::chrono::seconds(60)).ok());
  const std::uint64_t since = engine.step() + 1;
  run(64);
  engine.FinishAll();
  engine.Check(since);
  const Outcome result{store->GetStats(), engine.refused(), engine.valid, engine.missing};
  store.reset();
  std::fclose(nowhere);
  return result;
}

TEST(StarvedThread, AFullLogCostsRowsAndNeverMakesTheEngineWait) {
  const Outcome run = RunStarved(/*log_bytes=*/1, 4000);
  EXPECT_GT(run.stats.log_losses, 0u);
  EXPECT_GT(run.missing, 0);
  EXPECT_GE(run.valid, 2 * 64 * kDirectBlock);
}

TEST(StarvedThread, ALogWithRoomKeepsSlotsAndSnapshots) {
  const Outcome run = RunStarved(/*log_bytes=*/0, 1000);
  EXPECT_EQ(run.stats.log_losses, 0u);
  EXPECT_EQ(run.refused, 0);  // told steps wait in the log, not in a list of steps
  EXPECT_GE(run.valid, 2 * 64 * kDirectBlock);
}

}  // namespace
}  // namespace waymark::conformance
