// What goes wrong on the store's threads: StepRows that throw, and no memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/failing_new.h"
#include "tests/support/log_lines.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

using testing::HasSubstr;

// ---- StepRows that throw

enum class Throws { kNever, kPoll, kFirstLand, kSecondLand, kDone };

class ThrowingRows final : public StepRows {
 public:
  ThrowingRows(const RoutingShape& shape, std::vector<int> numbers, Throws at)
      : rows_(shape, std::move(numbers)), at_(at) {}

  bool Poll() override { return Call(Throws::kPoll), true; }
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    Call(++lands_ == 1 ? Throws::kFirstLand : Throws::kSecondLand);
    rows_.Land(first, destinations, verdicts);
  }
  void Done() override {
    ++done;
    Call(Throws::kDone);
  }

  int done = 0;

 private:
  void Call(Throws now) const {
    if (now == at_) throw 7;
  }
  NumberedRows rows_;
  const Throws at_;
  int lands_ = 0;
};

// The rows of a step of 65 rows in blocks 0 ... 16, the second piece of which is row 64.
struct Throwing : testing::Test {
  static constexpr int kRows = 65;
  static std::vector<int> Blocks() {
    std::vector<int> blocks;
    for (int block = 0; 4 * block < kRows; ++block)
      blocks.push_back(block);
    return blocks;
  }
  static StoreOptions Options(LogLines& lines) {
    return StoreDriver::With([&](StoreOptions& o) { o.log = lines.callback(); });
  }
  void Step(std::uint64_t step, Throws at, int number) {
    const std::vector<std::int64_t> slots = d->Slots(Blocks(), 0, kRows);
    std::vector<int> numbers;
    for (int i = 0; i < kRows; ++i)
      numbers.push_back(i == 0 ? number : i < 64 ? number + 1 : number + 2);
    StepBatch batch{.step = step, .version = 1, .slots = slots.data(), .num_slots = slots.size()};
    ASSERT_TRUE(d->store().BeginStep(batch).ok());
    rows.push_back(std::make_unique<ThrowingRows>(d->shape(), std::move(numbers), at));
    ASSERT_TRUE(d->store().Submit(StepId(step), rows.back().get()).ok());
    EXPECT_TRUE(d->store().LandOne());
    EXPECT_EQ(rows.back()->done, 1);
  }
  std::string Ends() { return d->Read(Blocks(), 0, 1) + " " + d->Read(Blocks(), 63, kRows); }

  std::vector<std::unique_ptr<ThrowingRows>> rows;
  std::optional<StoreDriver> d;
};

TEST_F(Throwing, EndsItsStepAsNotCaptured) {
  for (const Throws at : {Throws::kPoll, Throws::kFirstLand, Throws::kSecondLand, Throws::kDone}) {
    SCOPED_TRACE(static_cast<int>(at));
    LogLines lines;
    d.emplace(Options(lines));
    Step(1, Throws::kNever, 10);
    EXPECT_EQ(Ends(), "10@1 11@1 12@1");
    Step(2, at, 20);
    if (at == Throws::kDone) {
      EXPECT_EQ(Ends(), "20@2 21@2 22@2");
    } else if (at == Throws::kSecondLand) {
      EXPECT_EQ(Ends(), "20@2 21@2 N") << "what had landed is right";
    } else {
      EXPECT_EQ(Ends(), "N N N");
    }
    EXPECT_EQ(d->store().GetStats().exceptions, 1u);
    // The store goes on, and says it once.
    Step(3, at, 30);
    Step(4, Throws::kNever, 40);
    EXPECT_EQ(Ends(), "40@4 41@4 42@4");
    EXPECT_TRUE(d->store().WaitIdle(std::chrono::seconds(0)).ok());
    EXPECT_TRUE(d->store().status().ok());
    const std::vector<LogLines::Line> logged = lines.lines();
    ASSERT_EQ(logged.size(), 1u);
    EXPECT_EQ(logged[0].level, LogLevel::kError);
    EXPECT_THAT(logged[0].text, HasSubstr("StepRows threw"));
    EXPECT_THAT(d->store().GetStats().ToString(), HasSubstr("exceptions"));
    d.reset();
  }
}

TEST(ThrowingDone, OfARefusedStepThrowsIntoNobody) {
  StoreDriver d;
  ThrowingRows rows(d.shape(), {}, Throws::kDone);
  EXPECT_EQ(d.store().Submit(StepId(8), &rows).rule, StepRule::kStepNotInFlight);
  EXPECT_EQ(rows.done, 1);
  EXPECT_EQ(d.store().GetStats().exceptions, 1u);
}

// ---- no memory

// Rows of which only the end is of interest, on another thread.
struct DoneRows final : StepRows {
  void Land(std::uint32_t, std::span<std::uint8_t* const>, std::span<Reason>) override {}
  void Done() override { ++done; }
  std::atomic<int> done = 0;
};

// A small scenario that uses every part of a store which allocates. It ignores errors, as an engine
// may, and never allocates itself while an allocation may fail.
class Scenario {
 public:
  explicit Scenario(Landing landing) : landing_(landing) {
    std::vector<Event> events = {Bind(1), Bind(2), Event::Seal(BlockId(1), Key(7), StepId(1))};
    for (int block = 100; block < 150; ++block)
      events.push_back(Event::Seal(BlockId(block), Key(block)));  // more than are reserved
    begin1_ = std::move(events);
    for (int block = 200; block < 250; ++block)
      begin2_.push_back(Bind(block, 7));
    begin2_.push_back(Bind(3, 7));
    begin2_.push_back(Copy(2, 4, 2));
    for (int i = 0; i < 1100; ++i)
      moves_.push_back(Event::Move(BlockId(1000 + i), BlockId(2500 + i), i + 1 < 1100));
    for (std::size_t i = 0; i < kSteps; ++i) {
      std::vector<int> numbers;
      for (int row = 0; row < 8; ++row)
        numbers.push_back((i == 3 && row < 4 ? 100 : 100 * static_cast<int>(i + 1)) + row);
      rows_[i] = std::make_unique<NumberedRows>(StoreDriver::Shape(), std::move(numbers));
    }
    options_ = StoreDriver::Options();
    options_.landing = landing;
    options_.num_blocks = 4096;
    options_.num_pages = 64;
    options_.max_step_rows = 16;
    options_.audit = true;
    options_.log_bytes = 16384;
  }

  // Runs it with the n-th allocation failing. Returns how many there were, but for the checks.
  std::uint64_t Run(std::uint64_t n, bool and_all_after) {
    FailAllocation(n, and_all_after);
    {
      absl::StatusOr<std::unique_ptr<RoutingStore>> store = RoutingStore::Create(options_);
      made_ = store.ok();
      if (made_) Use(**store);
      if (made_ && !and_all_after) {
        seen_ = AllocationsSeen();
        FailAllocation(0);
        Judge(**store);
      }
    }
    if (!made_ || and_all_after) seen_ = AllocationsSeen();
    FailAllocation(0);
    EXPECT_TRUE(waited_) << "a snapshot waits for ever";
    for (const Reading& reading : readings_)
      CheckRows(reading);
    for (std::size_t i = 0; i < kSteps; ++i)
      EXPECT_EQ(rows_[i]->done, made_ && i < submitted_ ? 1 : 0) << "step " << i + 1;
    return seen_;
  }

  [[nodiscard]] bool made() const { return made_; }
  [[nodiscard]] bool failed() const { return failed_; }
  // Rows that were read as valid.
  [[nodiscard]] int valid() const { return valid_; }

 private:
  static constexpr std::size_t kSteps = 4;

  // What a snapshot must have: row i is row number first + i, or it is missing.
  struct Reading {
    std::optional<Snapshot> snapshot;
    std::optional<Rows> rows;
    int first = 0;
  };

  void Begin(RoutingStore& store, std::uint64_t step, std::span<const Event> events,
             std::span<const std::int64_t> slots) {
    StepBatch batch{.step = step, .version = 1};
    batch.events = events.data(), batch.num_events = events.size();
    batch.slots = slots.data(), batch.num_slots = slots.size();
    (void)store.BeginStep(batch);
  }
  // Refused if its begin was: the rows get their Done() all the same.
  void Submit(RoutingStore& store, std::uint64_t step) {
    (void)store.Submit(StepId(step), rows_[step - 1].get());
    submitted_ = std::max(submitted_, step);
    while (landing_ == Landing::kCaller && store.LandOne()) {
    }
  }
  void Step(RoutingStore& store, std::uint64_t step, std::span<const Event> events,
            std::span<const std::int64_t> slots) {
    Begin(store, step, events, slots);
    Submit(store, step);
  }
  void Take(RoutingStore& store, std::span<const BlockId> blocks, std::int64_t rows, int first) {
    absl::StatusOr<Snapshot> snapshot = store.TakeSnapshot(blocks, 0, rows);
    Reading& reading = readings_[taken_++];
    reading.first = first;
    if (snapshot.ok()) reading.snapshot = *std::move(snapshot);
  }
  void Read(Reading& reading) {
    if (!reading.snapshot.has_value()) return;
    const absl::Status ready = reading.snapshot->Wait(std::chrono::seconds(20));
    waited_ = waited_ && ready.ok();
    absl::StatusOr<Rows> rows = reading.snapshot->ReadRows();
    if (rows.ok()) reading.rows = *std::move(rows);
  }

  void Use(RoutingStore& store) {
    constexpr std::int64_t kTwoBlocks[] = {4, 5, 6, 7, 8, 9, 10, 11};
    const BlockId one[] = {BlockId(1)}, two[] = {BlockId(1), BlockId(2)}, three[] = {BlockId(3)};
    const BlockId four[] = {BlockId(4)}, five[] = {BlockId(5), BlockId(6)};
    Step(store, 1, begin1_, kTwoBlocks);
    Take(store, two, 8, 100);
    Step(store, 2, begin2_, std::span(kTwoBlocks).subspan(4));  // rewrites block 2
    Take(store, one, 4, 100);
    Take(store, three, 4, 100);  // by key
    Take(store, four, 2, 104);   // a copy
    (void)store.Report(moves_);
    const Event binds[] = {Bind(5), Bind(6), Event::Seal(BlockId(6), Key(8))};
    (void)store.Schedule(StepId(3), 1);
    (void)store.Report(binds);
    constexpr std::int64_t kNewBlocks[] = {20, 21, 22, 23, 24, 25, 26, 27};
    Begin(store, 3, {}, kNewBlocks);
    Take(store, five, 8, 300);
    // Ignored and audited: rows that agree, and rows that do not, which loses those of block 6.
    constexpr std::int64_t kSealed[] = {4, 5, 6, 7, 24, 25, 26, 27};
    Begin(store, 4, {}, kSealed);
    Submit(store, 4);  // fetched ahead: step 3 is open
    Submit(store, 3);
    Take(store, one, 4, 100);
    Take(store, three, 4, 100);
    (void)store.CoveredPrefix(one, 4);
    (void)store.GetStats();
    (void)store.TakeFindings();
    for (Reading& reading : readings_)
      Read(reading);
    (void)store.WaitIdle(std::chrono::seconds(20));
  }

  // What a store says of itself, whether or not it has failed.
  void Judge(RoutingStore& store) {
    const absl::Status idle = store.WaitIdle(std::chrono::seconds(20));
    failed_ = !store.status().ok();
    if (failed_) {
      EXPECT_EQ(store.status().code(), absl::StatusCode::kResourceExhausted);
    }
    EXPECT_TRUE(idle.ok() || idle.code() == absl::StatusCode::kResourceExhausted) << idle;
    EXPECT_TRUE(!failed_ || !idle.ok());
    const BlockId one[] = {BlockId(1)};
    const Stats stats = store.GetStats();
    EXPECT_EQ(stats.failure.empty(), !failed_);
    if (!failed_) return;
    EXPECT_EQ(stats.ToString().find("the store has failed: no memory, while "), 0u);
    EXPECT_EQ(store.CoveredPrefix(one, 4), 0);
    EXPECT_EQ(store.last_step(), StepId(4)) << "the engine runs on";
    absl::StatusOr<Snapshot> late = store.TakeSnapshot(one, 0, 4);
    ASSERT_TRUE(late.ok()) << late.status();
    ASSERT_TRUE(late->Wait(std::chrono::seconds(20)).ok());
    const absl::StatusOr<Rows> rows = late->ReadRows();
    ASSERT_TRUE(rows.ok()) << rows.status();
    for (const RowInfo& info : rows->infos)
      EXPECT_EQ(info.reason, Reason::kCapacity);
    // Steps end, and make room for others.
    for (std::uint64_t step = 5; step < 5 + 2 * options_.max_steps_in_flight; ++step) {
      const auto begun = [&] { return store.BeginStep({.step = step, .version = 1}); };
      ASSERT_TRUE(begun().ok());
      DoneRows rows;
      ASSERT_TRUE(store.Submit(StepId(step), &rows).ok());
      for (int i = 0; i < 20000 && rows.done.load() == 0; ++i) {
        (void)store.LandOne();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      ASSERT_EQ(rows.done.load(), 1) << "step " << step;
    }
  }

  void CheckRows(const Reading& reading) {
    if (!reading.rows.has_value()) return;
    const Rows& rows = *reading.rows;
    std::vector<std::uint8_t> expected(rows.shape.row_bytes());
    for (std::int64_t i = 0; i < rows.size(); ++i) {
      if (rows.infos[static_cast<std::size_t>(i)].reason != Reason::kNone) continue;
      NumberedRows::Fill(rows.shape, reading.first + static_cast<int>(i), expected.data());
      const std::span<const std::uint8_t> row = rows.row(i);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), row.begin()))
          << "a wrong row " << i << " of the snapshot of " << reading.first;
      ++valid_;
    }
  }

  const Landing landing_;
  StoreOptions options_;
  std::vector<Event> begin1_, begin2_, moves_;
  std::vector<std::uint8_t> message_;
  std::array<std::unique_ptr<NumberedRows>, kSteps> rows_;
  std::array<Reading, 8> readings_;
  std::size_t taken_ = 0;
  std::uint64_t submitted_ = 0;
  std::uint64_t seen_ = 0;
  bool made_ = false;
  bool failed_ = false;
  bool waited_ = true;
  int valid_ = 0;
};

struct NoMemory : testing::TestWithParam<Landing> {};

TEST_P(NoMemory, EndsNeitherTheEngineNorTheTruth) {
  Scenario whole(GetParam());
  const std::uint64_t allocations = whole.Run(0, false);
  EXPECT_FALSE(whole.failed());
  EXPECT_GE(whole.valid(), 8 + 4 + 4 + 2 + 4 + 4) << "the scenario reads every row";
  EXPECT_GT(allocations, 80u);
  int made = 0;
  int failed = 0;
  for (const bool and_all_after : {false, true}) {
    for (std::uint64_t n = 1; n <= allocations + 5 && !HasFailure(); ++n) {
      SCOPED_TRACE(absl::StrCat("allocation ", n, and_all_after ? " and all after" : ""));
      Scenario scenario(GetParam());
      scenario.Run(n, and_all_after);
      made += scenario.made() ? 1 : 0;
      failed += scenario.failed() ? 1 : 0;
    }
  }
  EXPECT_GT(made, 20);
  EXPECT_GT(failed, 0);  // how many depends on the threads
  EXPECT_LT(failed, made);
}

INSTANTIATE_TEST_SUITE_P(ThreadAndCaller, NoMemory,
                         testing::Values(Landing::kThread, Landing::kCaller));

}  // namespace
}  // namespace waymark
