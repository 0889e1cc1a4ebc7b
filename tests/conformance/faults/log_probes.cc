// Courses of records for the rules of the log, which the simulators' stores seldom stretch.
#include "blockstore/store/checkpoint.h"
#include "tests/conformance/faults/fault_on.h"
#include "tests/conformance/faults/faults.h"
#include "tests/conformance/faults/probe.h"

namespace waymark::conformance {
namespace {

constexpr std::size_t kAll = ~std::size_t{0};

// A store whose records wait for Apply, with the least room for them.
StoreOptions LaggingOptions() {
  return Direct::With(
      [](StoreOptions& o) { o.landing = Landing::kManual, o.log_bytes = 1, o.max_step_rows = 8; });
}

bool Report(Direct& direct, const std::vector<Event>& events) {
  return direct.store().Report(events).ok();
}

// Reports what changes nothing, `times` times or until it is refused.
int Retain(Direct& direct, int times) {
  const std::vector<Event> events(4, Event::Retain(BlockId(9)));
  int reported = 0;
  while (reported < times && Report(direct, events))
    ++reported;
  return reported;
}

// Applies the whole log, with the steps that were submitted.
void Settle(Direct& direct) {
  do {
    (void)direct.store().Apply(kAll);
  } while (direct.store().LandOne());
}

std::vector<int> TagsOf(Direct& direct, const Snapshot& snapshot) {
  Settle(direct);
  return Direct::TagsOf(Direct::Read(snapshot));
}

// ---- the order

std::string ProbeASnapshotIsTakenInItsPlace() {
  Direct direct;
  Fill(direct);
  (void)direct.Begin(2, {}, {});  // all that follows waits, and is applied at once
  const Snapshot before = direct.Take({0}, 4);
  (void)direct.Report({Event::Bind(BlockId(0))});
  (void)direct.store().Cancel(StepId(2));
  return Compare(Direct::TagsOf(Direct::Read(before)), kTens,
                 "an event was applied before the snapshot in front of it");
}

// Of two events the first lies in the ring, and the second in the overflow.
std::string ProbeTheRingComesFirst() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct.Submit(1, {10});
  Settle(direct);
  (void)Report(direct, {Event::Copy(BlockId(0), BlockId(1))});
  (void)Retain(direct, 24);
  if (!Report(direct, {Event::Bind(BlockId(0))})) return "the log is full";
  return Compare(TagsOf(direct, direct.Take({1}, 1)), {10}, "events were applied in another order");
}

// The engine's thread fills the ring, and goes on in the overflow, while the other one looks where
// the log ends.
std::string ProbeTheEndOfTheLogIsOfOneMoment() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct.Submit(1, {10});
  Settle(direct);
  BetweenTheLoadsHook() = [&] {
    (void)Report(direct, {Event::Copy(BlockId(0), BlockId(1))});
    (void)Retain(direct, 24);
    (void)Report(direct, {Event::Bind(BlockId(0))});
  };
  (void)direct.store().Apply(kAll);
  BetweenTheLoadsHook() = nullptr;
  return Compare(TagsOf(direct, direct.Take({1}, 1)), {10}, "events were applied in another order");
}

std::string ProbeBeginOfAnEarlierScheduleIsRefused() {
  Direct direct;
  const Event event = Event::Bind(BlockId(0));
  if (!direct.store().Schedule(StepId(2), 1).ok()) return "the schedule was refused";
  if (!direct.store().Report({&event, 1}).ok()) return "the event was refused";
  const StepCode code = direct.Begin(1, {}, {Direct::Slot(0, 0)});
  if (code.rule != StepRule::kScheduleAhead) return "step 1 began behind the events of step 2";
  return "";
}

std::string ProbeLostEventsPoison() {
  Direct direct;
  Fill(direct);
  (void)direct.store().LoseRows();
  (void)direct.Report({Event::Bind(BlockId(1))});
  return CompareReason(direct, Reason::kCapacity);
}

// ---- a log that is full

std::string ProbeAVerdictNeedsNoRoom() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  // A snapshot that waits for no record had no room.
  while (!direct.store().TakeSnapshot({}, 0, 0).value().Ready()) {
  }
  if (Report(direct, {Event::Retain(BlockId(9))})) return "the log is not full";
  return direct.Submit(1, {10}).ok() ? "" : "a step cannot end when the log is full";
}

std::string ProbeEveryLossIsPoisoned() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, {0, 4});
  (void)direct.Submit(1, {10, 20});
  for (int loss = 1; loss <= 2; ++loss) {
    (void)Retain(direct, 1 << 20);
    (void)Report(direct, std::vector<Event>(8, Event::Bind(BlockId(0))));  // lost
    Settle(direct);
    const std::uint64_t step = static_cast<std::uint64_t>(loss) + 1;
    (void)direct.Begin(step, {Event::Bind(BlockId(1))}, {4});
    (void)direct.Submit(step, {30});
    if (TagsOf(direct, direct.Take({0}, 1)) != std::vector<int>{-1}) {
      return "a row whose block may have been bound again was returned";
    }
    // The block has a row again, for the next loss.
    (void)Report(direct, {Event::Bind(BlockId(0)), Event::Copy(BlockId(1), BlockId(0))});
    if (TagsOf(direct, direct.Take({0}, 1)) != std::vector<int>{30}) return "a row is missing";
  }
  return "";
}

// ---- poison

std::string ProbePoisonEmptiesTheTable() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Retain(BlockId(0))}, Slots({0}), kTens);
  const Snapshot before = direct.Take({0}, 4);
  // Who owns block 0 now is not known.
  StoreCheckpoint::Poison(direct.store(), 3, 1);
  for (const Seen& row : direct.Read({0}, 4)) {
    if (row.info.reason != Reason::kCapacity)
      return "a row was returned that may be of another life";
  }
  if (direct.TagsOf(Direct::Read(before)) != kTens) return "a live snapshot has changed";
  return direct.store().last_step() == StepId(3) ? "" : "the last step is another one";
}

std::string ProbePoisonEmptiesTheIndex() {
  Direct direct;
  FillAndSeal(direct);
  StoreCheckpoint::Poison(direct.store(), 1, 1);
  direct.Step(2, {Event::Bind(BlockId(1), kKey)}, {}, {});
  return CompareRows(direct, {1}, {-1}, "a page from before the loss came by key");
}

std::string ProbePoisonForgetsOwnSeals() {
  Direct direct;
  Fill(direct);
  (void)direct.Report({Event::Seal(BlockId(0), kKey, StepId(0))});
  StoreCheckpoint::Poison(direct.store(), 1, 1);  // block 0 may have another owner
  direct.Step(2, {}, {0}, {20});
  direct.Step(3, {}, {0}, {30});
  return CompareRows(direct, {0}, {30}, "a seal from before the loss was applied");
}

std::string ProbePoisonLeavesUsers() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Retain(BlockId(0))}, Slots({0}), kTens);
  StoreCheckpoint::Poison(direct.store(), 1, 1);
  (void)direct.Report({Event::Release(BlockId(0)), Event::Release(BlockId(0))});
  return direct.store().GetStats().releases_below_zero == 0 ? "" : "the block had lost its users";
}

// Once wrong: the seal of a step before the loss was accepted, and the truncation that took it back
// was taken for one of an earlier life. The block stayed sealed with a step that had not filled it,
// and its rows of step 3 were protected from step 4, which wrote over them.
std::string ProbeASealAfterPoisonCanBeTakenBack() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {0, 1}, {10, 11});
  direct.Step(2, {}, {2, 3}, {12, 13});
  if (!direct.store().LoseRows().ok()) return "a loss was refused";
  const std::vector<Event> rewind = {Event::Seal(BlockId(0), BlockKey::FromInteger(7), StepId(2)),
                                     Event::Truncate(BlockId(0), 0, StepId(2))};
  direct.Step(3, rewind, {0, 1}, {30, 31});
  direct.Step(4, {}, {1, 2}, {41, 42});
  if (direct.Tags({0}, 3) != std::vector<int>{30, 41, 42})
    return "a row of step 3 was kept at step 4";
  // When the life of a block began that nobody has bound since is not known.
  direct.Step(5, {Event::Seal(BlockId(0), BlockKey::FromInteger(7), StepId(4))}, {1}, {51});
  return CompareRows(direct, {0}, {30, 41, 42}, "a late seal had no effect");
}

// ---- tickets

std::string ProbeTicketIsRecycledOnce() {
  Direct direct(LaggingOptions());
  (void)direct.Begin(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, {0, 4});
  (void)direct.Submit(1, {10, 20});
  direct.Take({0}, 1).Release();  // before it is applied
  Settle(direct);
  (void)direct.Begin(2, {}, {});  // released tickets are taken back
  (void)direct.Submit(2, {});
  Settle(direct);
  const Snapshot first = direct.Take({0}, 1);
  const Snapshot second = direct.Take({1}, 1);
  return Compare(TagsOf(direct, first), {10}, "two snapshots have the same ticket");
}

constexpr Fault kFaults[] = {
    // The log.
    {"snapshot_is_applied_late", ProbeASnapshotIsTakenInItsPlace, "megatron",
     "manual=1 lag=30 report=6 mid=.6 preempt=.2 fork=.1"},
    {"ring_is_loaded_before_the_overflow", ProbeTheEndOfTheLogIsOfOneMoment},
    {"overflow_overtakes_the_ring", ProbeTheRingComesFirst, "vllm",
     "manual=1 lag=300 log_bytes=1 report=2 preempt=.1"},
    {"begin_behind_a_later_schedule", ProbeBeginOfAnEarlierScheduleIsRefused},
    {"verdict_needs_room", ProbeAVerdictNeedsNoRoom},
    {"lost_events_are_no_poison", ProbeLostEventsPoison, "vllm",
     "report=2 lost=.05 abort=.05 preempt=.05"},
    // Lost records, and tickets.
    {"second_loss_is_not_poisoned", ProbeEveryLossIsPoisoned, "vllm",
     "manual=1 lag=300 log_bytes=1 report=2 preempt=.1 abort=.1"},
    {"poison_keeps_the_table", ProbePoisonEmptiesTheTable, "vllm",
     "report=2 lost=.05 abort=.05 preempt=.05"},
    {"poison_keeps_the_index", ProbePoisonEmptiesTheIndex},
    {"poison_keeps_own_seals", ProbePoisonForgetsOwnSeals},
    {"poison_starts_lives", ProbeASealAfterPoisonCanBeTakenBack},
    {"poison_takes_users", ProbePoisonLeavesUsers},
    {"ticket_is_recycled_twice", ProbeTicketIsRecycledOnce},
};

}  // namespace

std::span<const Fault> LogFaults() {
  return kFaults;
}

}  // namespace waymark::conformance
