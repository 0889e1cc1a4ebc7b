// The log through RoutingStore: what is seen before the records are applied, and what a full log
// does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/blockstore/store/reported_events.h"
#include "tests/unit/blockstore/store/store_driver.h"

namespace waymark {
namespace {

// A store whose records wait for Apply.
StoreOptions Manual() {
  return StoreDriver::With([](StoreOptions& o) { o.landing = Landing::kManual; });
}

constexpr std::size_t kAll = ~std::size_t{0};

TEST(StoreLog, ASnapshotSeesWhatWasReportedBeforeItAndNothingAfter) {
  StoreDriver d;
  d.Step(1, {Bind(3), Bind(4)}, d.Slots({3, 4}, 0, 8), {10, 11, 12, 13, 14, 15, 16, 17});
  const Snapshot before = d.Take({3}, 0, 4);
  d.Report({Bind(3)});
  EXPECT_EQ(d.Show(before), "10@1 11@1 12@1 13@1");
  EXPECT_EQ(d.Read({3}, 0, 4), "n n n n") << "the rows of its last owner";
  const BlockId blocks[] = {BlockId(3)};
  EXPECT_EQ(d.store().CoveredPrefix(blocks, 4), 0);
  // A fork into the block, in the middle of scheduling.
  d.Report({Copy(4, 3, 2)});
  EXPECT_TRUE(d.store().WaitIdle(std::chrono::seconds(0)).ok());
  EXPECT_EQ(d.Read({3}, 0, 4), "14@1 15@1 n n");
  EXPECT_EQ(d.store().CoveredPrefix(blocks, 4), 2);
}

// They are read from their record in pieces.
TEST(StoreLog, AllEventsOfALongCallAreAppliedAndRecorded) {
  const auto reported = std::make_shared<ReportedEvents>();
  StoreDriver d(StoreDriver::With([&](StoreOptions& o) { o.flight = reported; }));
  d.Step(1, {Bind(3)}, d.Slots({3}, 0, 1), {10});
  std::vector<Event> events(1000, Retain(9));
  events.push_back(Bind(3));
  (void)reported->Take();
  ASSERT_TRUE(d.store().Report(events).ok());
  EXPECT_EQ(reported->Take(), events);
  EXPECT_EQ(d.Read({3}, 0, 1), "n");
  EXPECT_EQ(d.store().GetStats().events, 1002u);
}

TEST(StoreLog, AnUnappliedSnapshotIsNotReadyAndQueriesApplyNothing) {
  StoreDriver d(Manual());
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 2));
  d.Submit(1, {10, 11});
  const Snapshot snapshot = d.Take({3}, 0, 2);
  EXPECT_FALSE(snapshot.Ready());
  EXPECT_EQ(d.Show(snapshot),
            "Snapshot::Read: the store has not applied it yet: a step before it may wait for its "
            "ids; Wait() first");
  EXPECT_FALSE(d.store().LandOne()) << "what stands before the step was not applied";
  EXPECT_EQ(d.store().Apply(1), 1u);     // the schedule of the batch
  EXPECT_EQ(d.store().Apply(kAll), 1u);  // its events; the step waits for LandOne
  EXPECT_EQ(d.store().GetStats().log_records, 2u);
  EXPECT_TRUE(d.store().LandOne());
  EXPECT_EQ(d.store().GetStats().log_records, 3u);
  EXPECT_FALSE(snapshot.Ready());
  EXPECT_EQ(d.store().Apply(kAll), 1u);
  EXPECT_EQ(d.Show(snapshot), "10@1 11@1");
}

TEST(StoreLog, ASnapshotThatIsReleasedBeforeItIsAppliedPinsNothing) {
  StoreDriver d(Manual());
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 1));
  d.Take({3}, 0, 1).Release();
  d.Take({3}, 0, 1).Release();
  ASSERT_TRUE(d.store().Drop(StepId(1)).ok());
  (void)d.store().Apply(kAll);
  EXPECT_EQ(d.store().GetStats().snapshots_taken, 2u);
  EXPECT_EQ(d.store().GetStats().snapshots_live, 0u);
}

TEST(StoreLog, AStepBeforeTheOpenScheduleIsRefused) {
  StoreDriver d;
  EXPECT_TRUE(d.store().Schedule(StepId(5), 1).ok());
  EXPECT_EQ(d.TryBegin(4, {}, {}).rule, StepRule::kScheduleAhead);
  EXPECT_EQ(d.store().Schedule(StepId(4), 1).rule, StepRule::kStepNotIncreasing);
  EXPECT_TRUE(d.store().Schedule(StepId(5), 1).ok()) << "again";
  EXPECT_TRUE(d.TryBegin(5, {}, {}).ok());
  EXPECT_EQ(d.store().Schedule(StepId(5), 1).rule, StepRule::kStepNotIncreasing);
  EXPECT_TRUE(d.store().Schedule(StepId(7), 1).ok());
  EXPECT_TRUE(d.TryBegin(8, {}, {}).ok()) << "a schedule without a forward";
  EXPECT_EQ(d.TryBegin(std::uint64_t{1} << 56, {}, {}).rule, StepRule::kStepNotIncreasing);
}

// No step below it could be told any more.
TEST(StoreLog, AJumpOfStepNumbersIsRefusedAndChangesNothing) {
  constexpr std::uint64_t kJump = std::uint64_t{1} << 27;
  for (const std::uint64_t first : {std::uint64_t{1}, (std::uint64_t{1} << 56) - kJump - 2}) {
    StoreDriver d;
    d.Step(first, {Bind(3)}, d.Slots({3}, 0, 2), {10, 11});
    const StepCode code = d.TryBegin(first + kJump + 1, {Bind(3)}, d.Slots({3}, 1, 2));
    EXPECT_EQ(code.rule, StepRule::kStepJump);
    EXPECT_EQ(code.ToStatus().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(code.ToStatus().message(),
              absl::StrCat("step must be at most 134217728 (2^27) above the last step begun, ",
                           first, "; it is ", first + kJump + 1));
    EXPECT_EQ(d.store().Schedule(StepId(first + kJump + 1), 1).rule, StepRule::kStepJump);
    EXPECT_EQ(d.store().last_step(), StepId(first));
    EXPECT_EQ(d.Read({3}, 0, 2), absl::StrCat("10@", first, " 11@", first));
    d.Step(first + kJump, {}, d.Slots({3}, 1, 2), {12});
    EXPECT_EQ(d.Read({3}, 0, 2), absl::StrCat("10@", first, " 12@", first + kJump));
  }
}

// The largest number was begun like any other once.
TEST(StoreLog, StepsFrom2To56OnAreRefused) {
  for (const std::uint64_t step : {std::uint64_t{1} << 56, (std::uint64_t{1} << 63) - 5,
                                   std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    StoreDriver d;
    EXPECT_EQ(d.TryBegin(step, {}, {}).rule, StepRule::kStepNotIncreasing) << step;
    EXPECT_EQ(d.store().Schedule(StepId(step), 1).rule, StepRule::kStepNotIncreasing) << step;
    d.Step((std::uint64_t{1} << 56) - 1, {Bind(3)}, d.Slots({3}, 0, 1), {10});
    EXPECT_EQ(d.TryBegin(step, {}, {}).rule, StepRule::kStepNotIncreasing) << step;
    EXPECT_EQ(d.Read({3}, 0, 1), "10@72057594037927935") << step;
  }
}

TEST(StoreLog, ASealWithoutAStepIsThatOfTheNextStep) {
  StoreDriver d;
  d.Report({Bind(3), Event::Seal(BlockId(3), Key(7))});
  d.Step(9, {}, d.Slots({3}, 0, 4), {10, 11, 12, 13});
  d.Step(10, {Bind(4, 7)}, {}, {});
  EXPECT_EQ(d.Read({4}, 0, 4), "#10@9 #11@9 #12@9 #13@9");
  d.Step(11, {}, d.Slots({3}, 0, 1), {20});
  EXPECT_EQ(d.Read({3}, 0, 1), "~10@9") << "protected";
}

TEST(StoreLog, APageThatWasFoundUnderOtherWeightsIsLostAtTheStep) {
  StoreDriver d;
  d.Step(1, {Bind(3), Seal(3, 7, 1)}, d.Slots({3}, 0, 4), {10, 11, 12, 13}, 1);
  const Event bind[] = {Bind(4, 7)};
  ASSERT_TRUE(d.store().Report(bind).ok());
  d.Begin(2, {}, {}, /*version=*/2);
  ASSERT_TRUE(d.store().Drop(StepId(2)).ok());
  EXPECT_EQ(d.Read({4}, 0, 4), "x x x x");
  // With its schedule opened, it is not found in the first place.
  ASSERT_TRUE(d.store().Schedule(StepId(3), 2).ok());
  ASSERT_TRUE(d.store().Report(bind).ok());
  EXPECT_EQ(d.store().GetStats().hits_by_key, 1u);
}

// The count does not wait for the log: a verdict makes room at once.
TEST(StoreLog, OpenStepsAreCountedWhenTheyAreReported) {
  StoreOptions options = Manual();
  options.max_steps_in_flight = 2;
  StoreDriver d(options);
  d.Begin(1, {}, {});
  d.Begin(2, {}, {});
  EXPECT_EQ(d.TryBegin(3, {}, {}).rule, StepRule::kRingFull);
  ASSERT_TRUE(d.store().Drop(StepId(1)).ok());
  d.Begin(4, {}, {});
  EXPECT_EQ(d.TryBegin(5, {}, {}).rule, StepRule::kRingFull);
  d.Submit(2, {});
  d.Begin(6, {}, {});
  d.Submit(4, {});
  d.Submit(6, {});
  ASSERT_TRUE(d.store().WaitIdle(std::chrono::seconds(0)).ok());
  const Stats stats = d.store().GetStats();
  EXPECT_EQ(stats.steps_without_room, 2u);
  EXPECT_EQ(stats.steps_dropped, 3u);
  EXPECT_EQ(stats.steps_landed, 3u);
}

TEST(StoreLog, ASecondThreadInACallIsRefused) {
  StoreDriver d;
  // Submit calls Done() of rows that it refuses after its own turn, so a call from there is fine.
  struct Reentering final : StepRows {
    explicit Reentering(RoutingStore& given) : store(given) {}
    void Land(std::uint32_t, std::span<std::uint8_t* const>, std::span<Reason>) override {}
    void Done() override { code = store.Drop(StepId(9)); }
    RoutingStore& store;
    StepCode code;
  } rows(d.store());
  EXPECT_EQ(d.store().Submit(StepId(8), &rows).rule, StepRule::kStepNotInFlight);
  EXPECT_EQ(rows.code.rule, StepRule::kStepNotInFlight);

  std::atomic<bool> stop = false;
  std::atomic<int> busy = 0;
  std::thread other([&] {
    while (!stop.load())
      busy += d.store().Drop(StepId(1000)).rule == StepRule::kBusy ? 1 : 0;
  });
  const std::vector<Event> events(4000, Retain(3));
  for (int i = 0; i < 1000000 && busy.load() == 0; ++i)
    (void)d.store().Report(events);
  stop = true;
  other.join();
  EXPECT_GT(busy.load(), 0);
}

// ---- a full log

struct FullLog : testing::Test {
  static StoreOptions Options() {
    StoreOptions options = Manual();
    options.log_bytes = 16384;
    options.max_step_rows = 8;
    return options;
  }
  // Takes an empty snapshot, the smallest record. False if there is no room for it: it then waits
  // for no record.
  bool TakesRoom() { return !d.store().TakeSnapshot({}, 0, 0).value().Ready(); }
  // Takes them until there is no room. Returns how many had room.
  int Fill() {
    int taken = 0;
    while (TakesRoom())
      ++taken;
    return taken;
  }
  // Submits and lands a step, and reads, of a store whose records wait.
  void Land(std::uint64_t step, std::vector<int> numbers) {
    d.Submit(step, std::move(numbers));
    (void)d.store().Apply(kAll);
    EXPECT_TRUE(d.store().Land(StepId(step)));
  }
  std::string Read(const std::vector<int>& blocks, std::int64_t first, std::int64_t last) {
    const Snapshot snapshot = d.Take(blocks, first, last);
    (void)d.store().Apply(kAll);
    return d.Show(snapshot);
  }
  StoreDriver d{Options()};
};

TEST_F(FullLog, RecordsKeepTheirOrderThroughTheOverflow) {
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 2));
  const std::vector<Event> events(8, Retain(9));
  for (int i = 0; i < 400; ++i)
    ASSERT_TRUE(d.store().Report(events).ok());  // more than the ring holds
  d.Report({Bind(3)});
  d.Submit(1, {10, 11});
  const Snapshot rebound = d.Take({3}, 0, 2);
  while (d.store().Apply(1) == 1) {
  }
  EXPECT_TRUE(d.store().LandOne());
  while (d.store().Apply(1) == 1) {
  }
  EXPECT_EQ(d.Show(rebound), "n n");
  EXPECT_EQ(d.store().GetStats().log_losses, 0u);
}

TEST_F(FullLog, LostRecordsEmptyTheStoreAndNothingWaitsForEver) {
  ASSERT_TRUE(d.store().Apply(kAll) == 0);
  d.Begin(1, {Bind(3), Retain(3)}, d.Slots({3}, 0, 2));
  Land(1, {10, 11});
  const Snapshot live = d.Take({3}, 0, 2);
  d.Begin(2, {}, d.Slots({3}, 2, 3));
  d.Begin(3, {}, d.Slots({3}, 3, 4));
  const Snapshot before = d.Take({3}, 0, 4);
  EXPECT_GT(Fill(), 1000);
  NumberedRows rows(d.shape(), {20});
  EXPECT_TRUE(d.store().Submit(StepId(2), &rows).ok()) << "a verdict is never lost";
  EXPECT_EQ(d.TryBegin(4, {}, d.Slots({3}, 0, 1)).rule, StepRule::kLogFull);
  EXPECT_EQ(d.store().Submit(StepId(4), nullptr).rule, StepRule::kStepNotInFlight);
  d.Submit(3, {30});
  ASSERT_TRUE(d.store().WaitIdle(std::chrono::seconds(0)).ok());  // the loss behind them, too
  EXPECT_EQ(d.store().GetStats().log_losses, 1u);
  EXPECT_EQ(rows.done, 1);
  EXPECT_EQ(d.Show(live), "10@1 11@1");
  EXPECT_EQ(d.Show(before), "10@1 11@1 20@2 30@3") << "what was told before the loss";
  EXPECT_EQ(Read({3, 30}, 0, 8), "c c c c c c c c") << "also a block that was never named";
  // Life goes on: steps after the lost one, and blocks with new lives.
  EXPECT_EQ(d.TryBegin(4, {}, {}).rule, StepRule::kStepNotIncreasing);
  d.Begin(5, {Bind(3)}, d.Slots({3}, 0, 1));
  Land(5, {40});
  EXPECT_EQ(Read({3}, 0, 2), "40@5 n");
}

// A verdict needs no room, wherever in the memory of the log its step is.
TEST_F(FullLog, VerdictsNeedNoRoom) {
  std::uint64_t step = 0;
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<std::uint64_t> open;
    while (d.store().BeginStep({.step = ++step, .version = 1}).ok())
      open.push_back(step);
    ASSERT_EQ(open.size(), d.store().options().max_steps_in_flight);
    Fill();
    for (const std::uint64_t end : open) {
      const StepCode code = end % 3 == 0   ? d.store().Drop(StepId(end))
                            : end % 3 == 1 ? d.store().Cancel(StepId(end))
                                           : d.store().Submit(StepId(end), nullptr);
      ASSERT_TRUE(code.ok()) << code.ToStatus() << ", turn " << turn;
    }
    EXPECT_FALSE(TakesRoom());
    // The log moves on, and is not always emptied.
    (void)d.store().Apply(turn % 2 == 0 ? kAll : 200);
    ASSERT_TRUE(d.store().WaitIdle(std::chrono::seconds(0)).ok());
    for (int i = 0; i < turn; ++i)
      ASSERT_TRUE(TakesRoom());
    (void)d.store().Apply(kAll);
  }
}

// Once an error: an engine's thread that takes a snapshot before it frees the blocks got an
// exception in place of missing rows.
TEST_F(FullLog, ASnapshotIsGivenAndItsRowsAreMissing) {
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 2));
  Land(1, {10, 11});
  EXPECT_GT(Fill(), 1000);
  const BlockId blocks[] = {BlockId(3)};
  {
    const auto snapshot = d.store().TakeSnapshot(blocks, 0, 2).value();
    EXPECT_TRUE(snapshot.Ready());
    EXPECT_TRUE(snapshot.Wait(std::chrono::seconds(0)).ok());
    EXPECT_EQ(d.Show(snapshot), "c c");
  }
  EXPECT_TRUE(d.store().TakeSnapshot(blocks, 0, 1).ok());
  // Nothing else was lost.
  (void)d.store().Apply(kAll);
  EXPECT_GT(d.store().GetStats().snapshots_lost, 2u);
  EXPECT_EQ(d.store().GetStats().snapshots_live, 0u);
  EXPECT_EQ(d.store().GetStats().log_losses, 0u);
  // Begins take the tickets back, which are used again.
  for (std::uint64_t step = 2; step < 6; ++step) {
    d.Begin(step, {}, {});
    Land(step, {});
    EXPECT_EQ(Read({3}, 0, 2), "10@1 11@1");
    EXPECT_EQ(Read({3}, 1, 2), "11@1");
  }
}

// Events are checked also where there is no room for them, and a refused call loses nothing.
TEST_F(FullLog, AnInvalidEventIsNamedAndNothingIsLost) {
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 1));
  Land(1, {10});
  std::vector<Event> events(1 << 12, Retain(9));  // more than the log holds
  events.push_back(Bind(32));
  EXPECT_EQ(d.store().Report(events).rule, StepRule::kBlockOutOfRange);
  EXPECT_EQ(d.TryBegin(2, events, {}).rule, StepRule::kBlockOutOfRange);
  EXPECT_EQ(Read({3}, 0, 1), "10@1");
  EXPECT_EQ(d.store().GetStats().log_losses, 0u);
  events.pop_back();
  EXPECT_EQ(d.store().Report(events).rule, StepRule::kLogFull);
  EXPECT_EQ(Read({3}, 0, 1), "c");
}

// ---- events that were lost before they could be reported

TEST(StoreLog, LostEventsCostAllRowsInTheirPlace) {
  StoreDriver d;
  d.Step(1, {Bind(3), Retain(3)}, d.Slots({3}, 0, 2), {10, 11});
  const Snapshot before = d.Take({3}, 0, 2);
  ASSERT_TRUE(d.store().LoseRows().ok());
  const Snapshot after = d.Take({3}, 0, 2);
  d.Report({Bind(4)});
  d.Step(2, {}, d.Slots({4}, 0, 1), {20});
  EXPECT_EQ(d.Show(before), "10@1 11@1");
  EXPECT_EQ(d.Show(after), "c c");
  EXPECT_EQ(d.Read({3, 4}, 0, 5), "c c c c 20@2") << "block 4 was bound after the loss";
  EXPECT_EQ(d.store().GetStats().log_losses, 1u);
  EXPECT_EQ(d.store().TakeSnapshot({}, 0, 0)->ReadRows().value().size(), 0);
  d.Report({Release(3)});
  EXPECT_EQ(d.store().GetStats().releases_below_zero, 0u) << "users stay";
}

// A landing thread learns of it with the next step.
TEST(StoreLog, LostEventsWaitForTheirTurn) {
  StoreDriver d(Manual());
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 1));
  ASSERT_TRUE(d.store().LoseRows().ok());
  d.Submit(1, {10});
  d.Begin(2, {}, d.Slots({3}, 1, 2));
  d.Submit(2, {20});
  ASSERT_TRUE(d.store().WaitIdle(std::chrono::seconds(0)).ok());
  const Snapshot snapshot = d.Take({3}, 0, 2);
  ASSERT_TRUE(d.store().WaitIdle(std::chrono::seconds(0)).ok());
  EXPECT_EQ(d.Show(snapshot), "c 20@2");
}

TEST_F(FullLog, EventsThatAreLostWhileItIsFullAreOneLossMore) {
  d.Begin(1, {Bind(3)}, d.Slots({3}, 0, 2));
  Land(1, {10, 11});
  Fill();
  EXPECT_TRUE(d.store().LoseRows().ok());
  ASSERT_TRUE(d.store().WaitIdle(std::chrono::seconds(0)).ok());
  EXPECT_EQ(d.store().GetStats().log_losses, 1u);
  EXPECT_EQ(Read({3}, 0, 2), "c c");
}

}  // namespace
}  // namespace waymark
