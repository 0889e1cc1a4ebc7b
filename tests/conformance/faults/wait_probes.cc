// Courses of events for the steps that wait in the log: fetching ahead, timeouts, and the thread.
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <numeric>
#include <thread>

#include "tests/conformance/faults/faults.h"
#include "tests/conformance/faults/probe.h"

namespace waymark::conformance {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// ---- fetching ahead

std::string ProbeAFetchedStepIsDone() {
  LateRows second({20, -1});
  second.come = true;
  Direct direct;
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct.Begin(2, {Event::Bind(BlockId(1))}, {4, 5});
  (void)direct.store().Submit(StepId(2), &second);
  direct.FetchAhead();
  if (second.dones != 1) return "the buffer of a step behind an open one does not come back";
  const BlockId block(1);
  if (direct.store().CoveredPrefix({&block, 1}, 4) != 0) return "fetching has changed the state";
  (void)direct.Submit(1, {10});
  if (!direct.Land(1) || !direct.Land(2)) return "the steps did not land";
  if (second.dones != 1) return "Done() was called twice";
  if (second.used_after_done) return "ids were used after their Done()";
  return CompareRows(direct, {0, 1}, {10, -1, -1, -1, 20, -1}, "rows that were fetched");
}

std::string ProbeAFetchedStepHasItsRows() {
  Direct direct(Direct::With([](StoreOptions& o) { o.num_blocks = 32, o.max_step_rows = 128; }));
  std::vector<std::int64_t> slots(100);
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<int> tags(100);
  std::iota(tags.begin(), tags.end(), 0);
  (void)direct.Begin(1, {}, {});
  (void)direct.Begin(2, {}, slots);
  (void)direct.Submit(2, tags);
  direct.FetchAhead();
  (void)direct.store().Cancel(StepId(1));
  (void)direct.Land(2);
  std::vector<std::int32_t> blocks(25);
  std::iota(blocks.begin(), blocks.end(), 0);
  return CompareRows(direct, blocks, tags, "rows that were fetched");
}

std::string ProbeNoMoreIsFetchedThanHasRoom() {
  LateRows second({20});
  second.come = true;
  Direct direct(Direct::With([](StoreOptions& o) { o.ahead_bytes = 0; }));
  (void)direct.Begin(1, {}, {});
  (void)direct.Begin(2, {Event::Bind(BlockId(0))}, {0});
  (void)direct.store().Submit(StepId(2), &second);
  direct.FetchAhead();
  if (second.dones != 0) return "a step was fetched without room";
  (void)direct.store().Cancel(StepId(1));
  (void)direct.Land(2);
  return CompareRows(direct, {0}, {20}, "a step was lost for want of room");
}

std::string ProbeRoomOfFetchedStepsComesBack() {
  StoreOptions options = Direct::Options();
  options.ahead_bytes = 60;  // for the rows of one step
  std::deque<LateRows> rows;
  Direct direct(options);
  for (std::uint64_t step = 1; step < 9; step += 2) {
    (void)direct.Begin(step, {}, {});
    (void)direct.Begin(step + 1, {}, Slots({0}));
    rows.emplace_back(std::vector<int>{1, 2, 3, 4}).come = true;
    (void)direct.store().Submit(StepId(step + 1), &rows.back());
    direct.FetchAhead();
    if (rows.back().dones != 1) return "a step was not fetched though nothing else is";
    (void)direct.store().Cancel(StepId(step));
    (void)direct.Land(step + 1);
  }
  return "";
}

// ---- ids that do not come

std::string ProbeIdsAreNotWaitedForForEver() {
  LateRows rows({10});
  Direct direct(Direct::With([](StoreOptions& o) {
    o.landing = Landing::kThread, o.ids_timeout = milliseconds(20),
    o.teardown_timeout = milliseconds(1);
  }));
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct.store().Submit(StepId(1), &rows);
  const Snapshot snapshot = direct.Take({0}, 1);
  if (!snapshot.Wait(std::chrono::seconds(1)).ok()) return "the log waits for ids";
  const RowInfo info = Direct::Read(snapshot)[0].info;
  return info.reason == Reason::kNotCaptured ? "" : "the row is not (not captured)";
}

std::string ProbeAStepMayBeOpenForLong() {
  LateRows rows({10});
  rows.after = 2;
  Direct direct(Direct::With([](StoreOptions& o) { o.ids_timeout = milliseconds(300); }));
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  std::this_thread::sleep_for(milliseconds(350));
  (void)direct.store().Submit(StepId(1), &rows);
  (void)direct.Land(1);
  return CompareRows(direct, {0}, {10}, "the time before its Submit was counted");
}

std::string ProbeOnlyTheStepThatHangsIsLost() {
  LateRows first({10}), second({21});
  second.come = true;
  Direct direct(
      Direct::With([](StoreOptions& o) { o.ids_timeout = milliseconds(10), o.ahead_bytes = 0; }));
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct.Begin(2, {}, {1});
  (void)direct.store().Submit(StepId(1), &first);
  (void)direct.store().Submit(StepId(2), &second);
  (void)direct.Land(1);
  (void)direct.Land(2);
  return CompareRows(direct, {0}, {-1, 21}, "ids that had come were not asked");
}

std::string ProbeAbandonedIdsAreDoneWhenTheyCome() {
  LateRows rows({10}), never({20});
  auto direct = std::make_unique<Direct>(
      Direct::With([](StoreOptions& o) { o.ids_timeout = o.teardown_timeout = milliseconds(1); }));
  (void)direct->Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct->store().Submit(StepId(1), &rows);
  if (!direct->Land(1)) return "the step did not end";
  if (rows.dones != 0) return "Done() was called although the ids may still be written";
  rows.come = true;
  (void)direct->Report({Event::Retain(BlockId(0))});
  if (rows.dones != 1) return "the ids have come, and got no Done()";
  (void)direct->Begin(2, {}, {0});
  (void)direct->store().Submit(StepId(2), &never);
  (void)direct->Land(2);
  direct.reset();
  if (!never.gave_up) return "the owner was not told that its ids were given up";
  return never.dones == 1 ? "" : "ids got no Done() at the end of the store";
}

std::string ProbeAStepIsOverdueOnce() {
  LateRows rows({10});
  Direct direct(Direct::With([](StoreOptions& o) { o.overdue_after = milliseconds(1); }));
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct.store().Submit(StepId(1), &rows);
  (void)direct.store().WaitIdle(milliseconds(20));
  const std::uint64_t overdue = direct.store().GetStats().steps_overdue;
  rows.come = true;
  direct.LandAll();
  return overdue == 1 ? "" : "one step is overdue, counted " + std::to_string(overdue);
}

std::string ProbeTheEndWaitsForAllTogether() {
  std::deque<LateRows> rows;
  auto direct = std::make_unique<Direct>(Direct::With(
      [](StoreOptions& o) { o.teardown_timeout = milliseconds(30), o.max_steps_in_flight = 64; }));
  for (std::uint64_t step = 1; step <= 20; ++step) {
    (void)direct->Begin(step, {}, {0});
    (void)direct->store().Submit(StepId(step), &rows.emplace_back(std::vector<int>{1}));
  }
  const auto start = Clock::now();
  direct.reset();
  return Clock::now() - start < milliseconds(400) ? "" : "each step had a timeout of its own";
}

// ---- the thread

// It sleeps for up to 0.1 s where nothing wakes it.
std::string ProbeAVerdictWakes() {
  Direct direct(Direct::With([](StoreOptions& o) { o.landing = Landing::kThread; }));
  constexpr int kTimes = 5;
  int quick = 0;
  for (std::uint64_t step = 1; step <= kTimes; ++step) {
    (void)direct.Begin(step, {}, {0});
    const Snapshot snapshot = direct.Take({0}, 1);
    // Until it neither spins nor naps.
    std::this_thread::sleep_for(milliseconds(130) + milliseconds(17) * step);
    const auto start = Clock::now();
    (void)direct.Submit(step, {1});
    (void)snapshot.Wait(std::chrono::seconds(5));
    quick += Clock::now() - start < milliseconds(12) ? 1 : 0;
  }
  return 2 * quick > kTimes ? "" : "the thread slept although a step had its verdict";
}

std::string ProbeQueriesApplyNothing() {
  Direct direct(Direct::With([](StoreOptions& o) { o.landing = Landing::kManual; }));
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, Slots({0}));
  (void)direct.Submit(1, {10, 11, 12, 13});
  (void)direct.store().Apply(100);
  direct.LandAll();
  (void)direct.Report({Event::Bind(BlockId(0))});
  const BlockId block(0);
  const std::int64_t covered = direct.store().CoveredPrefix({&block, 1}, 4);
  return covered == 4 ? "" : "a query has applied the log";
}

constexpr Fault kFaults[] = {
    {"fetched_step_is_read_again", ProbeAFetchedStepIsDone, "vllm", "draft=.5 behind=4 shuffle=1"},
    {"fetched_step_is_done_twice", ProbeAFetchedStepIsDone, "vllm", "behind=4 shuffle=1 draft=.3"},
    {"fetched_rows_are_all_valid", ProbeAFetchedStepIsDone},
    {"fetched_rows_begin_at_the_chunk", ProbeAFetchedStepHasItsRows},
    {"ahead_bytes_are_ignored", ProbeNoMoreIsFetchedThanHasRoom},
    {"ahead_bytes_are_never_free", ProbeRoomOfFetchedStepsComesBack},
    {"nothing_is_fetched_ahead", ProbeAFetchedStepIsDone},
    {"step_is_not_lost_by_its_timeout", ProbeIdsAreNotWaitedForForEver},
    {"timeout_counts_from_the_tell", ProbeAStepMayBeOpenForLong},
    {"timeout_loses_the_steps_behind", ProbeOnlyTheStepThatHangsIsLost},
    {"step_is_overdue_at_each_look", ProbeAStepIsOverdueOnce},
    {"abandoned_ids_are_done_at_once", ProbeAbandonedIdsAreDoneWhenTheyCome},
    {"abandoned_ids_are_done_at_the_end", ProbeAbandonedIdsAreDoneWhenTheyCome},
    {"abandoned_ids_are_not_given_up", ProbeAbandonedIdsAreDoneWhenTheyCome},
    {"each_step_waits_at_the_end", ProbeTheEndWaitsForAllTogether},
    {"verdict_does_not_wake", ProbeAVerdictWakes},
    {"query_applies_the_log", ProbeQueriesApplyNothing},
};

}  // namespace

std::span<const Fault> WaitFaults() {
  return kFaults;
}

}  // namespace waymark::conformance
