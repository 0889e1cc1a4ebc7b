// Steps whose ids do not arrive, or late: what waits with them, for how long, and the end of a
// store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/log_lines.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

using std::chrono::nanoseconds;
using testing::HasSubstr;

// The rows of a step whose ids arrive when `arrived` is set.
class LateRows final : public StepRows {
 public:
  explicit LateRows(std::vector<int> numbers) : rows_(StoreDriver::Shape(), std::move(numbers)) {}

  bool Poll() override { return arrived; }
  void GiveUp() override { ++given_up; }
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override {
    ++reads;
    rows_.Land(first, destinations, verdicts);
  }
  void Done() override {
    given_up_before_done = given_up.load();
    ++done;
  }

  std::atomic<bool> arrived{false};
  std::atomic<int> given_up = 0;
  std::atomic<int> given_up_before_done = 0;
  std::atomic<int> reads = 0;
  std::atomic<int> done = 0;

 private:
  NumberedRows rows_;
};

// Step `step` writes rows 0 and 1 of `block`, which it binds.
struct LateStep {
  LateStep(RoutingStore& store, std::uint64_t step, std::int32_t block, bool arrived = false)
      : blocks{BlockId(block)}, slots{block * 4, block * 4 + 1}, rows({1, 2}) {
    rows.arrived = arrived;
    const Event events[] = {Event::Bind(BlockId(block))};
    StepBatch batch = {.step = step, .version = 1};
    batch.events = events, batch.num_events = 1;
    batch.slots = slots.data(), batch.num_slots = slots.size();
    EXPECT_TRUE(store.BeginStep(batch).ok());
    EXPECT_TRUE(store.Submit(StepId(step), &rows).ok());
  }
  const std::vector<BlockId> blocks;
  const std::vector<std::int64_t> slots;
  LateRows rows;
};

std::vector<Reason> ReasonsOf(const Snapshot& snapshot) {
  std::vector<Reason> reasons;
  const Rows rows = snapshot.ReadRows().value();
  for (const RowInfo& info : rows.infos)
    reasons.push_back(info.reason);
  return reasons;
}

// With what `change` sets.
template <class Change>
std::unique_ptr<RoutingStore> MakeStore(LogLines& logged, Change change,
                                        Landing landing = Landing::kThread) {
  StoreOptions options = StoreDriver::With(change);
  options.landing = landing;
  options.log = logged.callback();
  return RoutingStore::Create(options).value();
}

TEST(StoreTeardown, StepsWhoseIdsDoNotArriveAreGivenUp) {
  for (const Landing landing : {Landing::kThread, Landing::kCaller, Landing::kManual}) {
    for (const auto timeout : {nanoseconds(0), nanoseconds(std::chrono::milliseconds(20))}) {
      LogLines logged;
      auto store = MakeStore(
          logged, [&](StoreOptions& o) { o.teardown_timeout = timeout; }, landing);
      LateStep hung(*store, 7, 3);
      LateStep other(*store, 8, 4);
      LateStep arrived(*store, 9, 5, /*arrived=*/true);
      const auto of_hung = store->TakeSnapshot(hung.blocks, 0, 2).value();
      const auto of_arrived = store->TakeSnapshot(arrived.blocks, 0, 2).value();
      // A reader that waits is served, too.
      absl::Status waited = absl::UnknownError("");
      std::thread reader([&] { waited = of_hung.Wait(std::chrono::minutes(5)); });
      store.reset();
      reader.join();
      EXPECT_TRUE(waited.ok()) << waited;
      EXPECT_THAT(ReasonsOf(of_hung), testing::Each(Reason::kNotCaptured));
      EXPECT_THAT(ReasonsOf(of_arrived), testing::Each(Reason::kNone));
      for (const LateStep* step : {&hung, &other}) {
        EXPECT_EQ(step->rows.given_up, 1);
        EXPECT_EQ(step->rows.given_up_before_done, 1);
        EXPECT_EQ(step->rows.reads, 0);
        EXPECT_EQ(step->rows.done, 1);
      }
      EXPECT_EQ(arrived.rows.given_up, 0);
      EXPECT_EQ(arrived.rows.done, 1);
      ASSERT_EQ(logged.lines().size(), 1u);
      EXPECT_EQ(logged.lines()[0].level, LogLevel::kError);
      EXPECT_THAT(logged.lines()[0].text,
                  HasSubstr("the ids of 2 submitted steps (the first one is step 7)"));
    }
  }
}

TEST(StoreTeardown, IdsThatArriveInTimeLand) {
  for (const Landing landing : {Landing::kThread, Landing::kCaller}) {
    LogLines logged;
    auto store = MakeStore(
        logged, [](StoreOptions& o) { o.teardown_timeout = nanoseconds::max(); }, landing);
    LateStep step(*store, 7, 3);
    const auto snapshot = store->TakeSnapshot(step.blocks, 0, 2).value();
    std::thread device([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      step.rows.arrived = true;
    });
    store.reset();
    device.join();
    EXPECT_THAT(ReasonsOf(snapshot), testing::Each(Reason::kNone));
    EXPECT_EQ(step.rows.given_up, 0);
    EXPECT_TRUE(logged.lines().empty());
  }
}

// What is told behind it waits with it; its ids are fetched, so that its owner has their memory.
TEST(StoreTeardown, AnOverdueStepIsLoggedOnceByItsNumberAndHoldsUpNoBuffer) {
  LogLines logged;
  auto store =
      MakeStore(logged, [](StoreOptions& o) { o.overdue_after = std::chrono::milliseconds(1); });
  LateStep overdue(*store, 7, 3);
  while (store->GetStats().steps_overdue == 0)
    std::this_thread::yield();
  const LateStep next(*store, 8, 4, /*arrived=*/true);
  const LateStep third(*store, 9, 5, /*arrived=*/true);
  const auto of_next = store->TakeSnapshot(next.blocks, 0, 2).value();
  const auto of_third = store->TakeSnapshot(third.blocks, 0, 2).value();
  while (next.rows.done == 0 || third.rows.done == 0)
    std::this_thread::yield();
  EXPECT_EQ(store->GetStats().steps_landed, 0u);
  EXPECT_FALSE(of_next.Ready());
  EXPECT_THAT(store->GetStats().ToString(), HasSubstr("steps_overdue"));
  overdue.rows.arrived = true;
  ASSERT_TRUE(store->WaitIdle(std::chrono::minutes(1)).ok());
  EXPECT_THAT(ReasonsOf(of_next), testing::Each(Reason::kNone));
  EXPECT_THAT(ReasonsOf(of_third), testing::Each(Reason::kNone));
  EXPECT_EQ(next.rows.done, 1);
  EXPECT_EQ(store->GetStats().steps_overdue, 1u);
  EXPECT_EQ(store->GetStats().steps_ahead, 2u);
  EXPECT_EQ(store->GetStats().rows_landed, 6u);
  store.reset();
  ASSERT_EQ(logged.lines().size(), 1u);
  EXPECT_EQ(logged.lines()[0].level, LogLevel::kWarning);
  EXPECT_THAT(logged.lines()[0].text, HasSubstr("the ids of step 7 have not arrived "));
}

TEST(StoreTeardown, NothingIsFetchedAheadBeyondTheMemoryForIt) {
  LogLines logged;
  constexpr std::uint64_t kTwoRows = 2 * (12 + 1 + 8);
  auto store = MakeStore(logged, [](StoreOptions& o) { o.ahead_bytes = kTwoRows; });
  LateStep late(*store, 7, 3);
  const LateStep next(*store, 8, 4, /*arrived=*/true);
  const LateStep third(*store, 9, 5, /*arrived=*/true);
  while (next.rows.done == 0)
    std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(third.rows.done, 0);
  late.rows.arrived = true;
  ASSERT_TRUE(store->WaitIdle(std::chrono::minutes(1)).ok());
  EXPECT_EQ(store->GetStats().steps_ahead, 1u);
  EXPECT_EQ(store->GetStats().rows_landed, 6u);
}

// Its rows are missing, the log goes on, and the ids that come late are nobody's rows.
TEST(StoreTeardown, AStepWhoseIdsTakeTooLongIsLostAndItsMemoryComesBackWithThem) {
  LogLines logged;
  auto store =
      MakeStore(logged, [](StoreOptions& o) { o.ids_timeout = std::chrono::milliseconds(20); });
  LateStep late(*store, 7, 3);
  LateStep later(*store, 8, 5);
  const LateStep next(*store, 9, 4, /*arrived=*/true);
  const auto of_late = store->TakeSnapshot(late.blocks, 0, 2).value();
  const auto of_next = store->TakeSnapshot(next.blocks, 0, 2).value();
  ASSERT_TRUE(store->WaitIdle(std::chrono::minutes(1)).ok());
  EXPECT_THAT(ReasonsOf(of_late), testing::Each(Reason::kNotCaptured));
  EXPECT_THAT(ReasonsOf(of_next), testing::Each(Reason::kNone));
  EXPECT_EQ(late.rows.done, 0) << "a device may still write its memory";
  late.rows.arrived = true;
  LateStep wakes(*store, 10, 6, /*arrived=*/true);
  while (late.rows.done == 0)
    std::this_thread::yield();
  EXPECT_THAT(ReasonsOf(of_late), testing::Each(Reason::kNotCaptured));
  EXPECT_EQ(late.rows.reads, 0);
  EXPECT_EQ(late.rows.given_up, 0);
  store.reset();
  EXPECT_EQ(later.rows.given_up, 1);
  EXPECT_EQ(later.rows.done, 1);
  ASSERT_EQ(logged.lines().size(), 2u);
  EXPECT_THAT(logged.lines()[0].text, HasSubstr("the ids of step 7 have not arrived "));
  EXPECT_THAT(logged.lines()[0].text, HasSubstr("its rows are not captured"));
}

// An engine that begins a step long before its forward has time for it: an open step is waited for.
TEST(StoreTeardown, AnOpenStepIsNotLostByTime) {
  LogLines logged;
  auto store =
      MakeStore(logged, [](StoreOptions& o) { o.ids_timeout = std::chrono::milliseconds(1); });
  ASSERT_TRUE(store->BeginStep({.step = 6, .version = 1}).ok());
  const LateStep next(*store, 7, 3, /*arrived=*/true);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(store->GetStats().steps_begun, 0u);
  EXPECT_EQ(store->WaitIdle(std::chrono::milliseconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(store->Submit(StepId(6), nullptr).ok());
  ASSERT_TRUE(store->WaitIdle(std::chrono::minutes(1)).ok());
  EXPECT_EQ(store->GetStats().steps_landed, 2u);
  EXPECT_TRUE(logged.lines().empty());
}

TEST(StoreTeardown, NoStepIsOverdueWithoutALimit) {
  LogLines logged;
  auto store = MakeStore(logged, [](StoreOptions& o) { o.overdue_after = nanoseconds(0); });
  LateStep step(*store, 7, 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(store->GetStats().steps_overdue, 0u);
  step.rows.arrived = true;
  store.reset();
  EXPECT_TRUE(logged.lines().empty());
}

TEST(StoreTeardown, TheTimesAreNotNegative) {
  for (const auto& [time, name] : {std::pair(&StoreOptions::teardown_timeout, "teardown_timeout"),
                                   std::pair(&StoreOptions::overdue_after, "overdue_after"),
                                   std::pair(&StoreOptions::ids_timeout, "ids_timeout")}) {
    StoreOptions options = StoreDriver::Options();
    options.*time = nanoseconds(-7);
    EXPECT_EQ(RoutingStore::Create(options).status().message(),
              absl::StrCat(name, ": must be at least 0 ns, got -7"));
  }
}

}  // namespace
}  // namespace waymark
