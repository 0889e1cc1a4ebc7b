// Courses of events for rules whose breach the simulators excuse, or seldom meet.
#include "blockstore/store/checkpoint.h"
#include "tests/conformance/direct.h"
#include "tests/conformance/faults/faults.h"

namespace waymark::conformance {
namespace {

// All slots of these blocks.
std::vector<std::int64_t> Slots(const std::vector<std::int32_t>& blocks) {
  std::vector<std::int64_t> slots;
  for (const std::int32_t block : blocks) {
    for (std::int64_t offset = 0; offset < kDirectBlock; ++offset) {
      slots.push_back(Direct::Slot(block, offset));
    }
  }
  return slots;
}

}  // namespace

std::string ProbeReferencedPagesStay() {
  StoreOptions options = Direct::Options();
  options.num_pages = 1;
  Direct direct(options);
  direct.Step(1, {Event::Bind(BlockId(0))}, {Direct::Slot(0, 0)}, {10});
  // Block 0 has a user, so block 1 finds no page.
  direct.Step(2, {Event::Bind(BlockId(1))}, {Direct::Slot(1, 0)}, {20});
  const std::vector<int> first = direct.Tags({0}, 1);
  if (first != std::vector<int>{10}) return "the page of a block with users was taken";
  const std::vector<Seen> second = direct.Read({1}, 1);
  if (second[0].info.reason != Reason::kCapacity) return "a row without a page is not (capacity)";
  return "";
}

std::string ProbeAbsentRowsKeepTheirReason() {
  Direct direct;
  const BlockKey key = BlockKey::FromInteger(77);
  // KV from outside, of which the first row is computed again here.
  direct.Step(1, {Event::Bind(BlockId(0), key)}, {Direct::Slot(0, 0)}, {10});
  const std::vector<Seen> rows = direct.Read({0}, 2);
  if (rows[0].tag != 10) return "the row that was computed here is missing";
  if (rows[1].info.reason != Reason::kExternalKv) {
    return "a row of external KV is missing for another reason: " +
           std::string(ReasonName(rows[1].info.reason));
  }
  return "";
}

std::string ProbeSealsComeAfterTheClaims() {
  Direct direct;
  const BlockKey key = BlockKey::FromInteger(5);
  // Two blocks of one batch under one key: the one that is sealed first keeps it, whichever is
  // claimed first.
  direct.Step(1,
              {Event::Bind(BlockId(0)), Event::Bind(BlockId(1)),
               Event::Seal(BlockId(1), key, StepId(1)), Event::Seal(BlockId(0), key, StepId(1))},
              Slots({0, 1}), {10, 11, 12, 13, 20, 21, 22, 23});
  direct.Step(2, {Event::Bind(BlockId(2), key)}, {}, {});
  const std::vector<int> rows = direct.Tags({2}, 4);
  if (rows != std::vector<int>{20, 21, 22, 23})
    return "the block that was sealed second came by key";
  // A rejected draft is run again in the very step that seals its block.
  direct.Step(3, {Event::Bind(BlockId(3))}, {Direct::Slot(3, 0)}, {30});
  direct.Step(4, {Event::Seal(BlockId(3), key, StepId(4))}, {Direct::Slot(3, 0)}, {40});
  if (direct.Tags({3}, 1) != std::vector<int>{40})
    return "a claim of the seal's own step was ignored";
  direct.Step(5, {}, {Direct::Slot(3, 0)}, {50});
  return direct.Tags({3}, 1) == std::vector<int>{40} ? ""
                                                     : "a claim after the seal was not ignored";
}

std::string ProbeSealStaysWithItsLife() {
  Direct direct;
  const BlockKey key = BlockKey::FromInteger(5);
  // Announced full, then taken from its owner and given to another one, all in one batch.
  direct.Step(1,
              {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key, StepId(1)),
               Event::Release(BlockId(0)), Event::Bind(BlockId(0))},
              Slots({0}), {10, 11, 12, 13});
  direct.Step(2, {Event::Bind(BlockId(1), key)}, {}, {});
  return direct.Tags({1}, 1) == std::vector<int>{-1} ? ""
                                                     : "rows of the new life came by the old key";
}

std::string ProbeOwnSealMovesWithItsBlock() {
  Direct direct;
  // Sealed for the step to come, and swapped before it begins.
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, Slots({0, 1}),
              {10, 11, 12, 13, 20, 21, 22, 23});
  (void)direct.Report({Event::Seal(BlockId(0), BlockKey::FromInteger(5), StepId(0)),
                       Event::Move(BlockId(0), BlockId(1), true),
                       Event::Move(BlockId(1), BlockId(0))});
  direct.Step(2, {}, {}, {});
  direct.Step(3, {Event::Bind(BlockId(2), BlockKey::FromInteger(5))}, {}, {});
  return direct.Tags({2}, 4) == std::vector<int>{10, 11, 12, 13}
             ? ""
             : "the seal was applied to the block that moved in";
}

std::string ProbeLifeStartsWithTheNextStep() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, Slots({0}), {10, 11, 12, 13});
  // Between two steps the block gets another owner; then the rejection of drafts in step 1 is
  // reported, which wrote the rows that the new owner shares.
  (void)direct.Report(
      {Event::Copy(BlockId(0), BlockId(1)), Event::Truncate(BlockId(1), 0, StepId(1))});
  return direct.Tags({1}, 4) == std::vector<int>{10, 11, 12, 13}
             ? ""
             : "a truncation of the life before cleared rows";
}

std::string ProbeTruncateFollowsAMove() {
  Direct direct;
  const BlockKey key = BlockKey::FromInteger(5);
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key, StepId(1))}, Slots({0}),
              {10, 11, 12, 13});
  direct.Step(2, {Event::Bind(BlockId(1))}, Slots({1}), {20, 21, 22, 23});
  // The drafts of step 2 were rejected, in the block to which they have moved.
  (void)direct.Report(
      {Event::Move(BlockId(1), BlockId(2)), Event::Truncate(BlockId(2), 1, StepId(2))});
  if (direct.Tags({2}, 4) != std::vector<int>{20, -1, -1, -1}) return "rejected drafts stay valid";
  // The next owner has them from the prefix cache.
  (void)direct.Report({Event::Bind(BlockId(2), key), Event::Truncate(BlockId(2), 0, StepId(1))});
  return direct.Tags({2}, 4) == std::vector<int>{10, 11, 12, 13}
             ? ""
             : "a truncation of the life before cleared rows";
}

std::string ProbeKeyedBindKnowsItsVersion() {
  Direct direct;
  const BlockKey key = BlockKey::FromInteger(5);
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key, StepId(1))}, Slots({0}),
              {10, 11, 12, 13});
  // The first events under new weights.
  (void)direct.store().Schedule(StepId(2), 2);
  (void)direct.Report({Event::Bind(BlockId(1), key)});
  return direct.Tags({1}, 4) == std::vector<int>{-1, -1, -1, -1}
             ? ""
             : "a page of the old weights came by key";
}

std::string ProbePageOfAnotherVersionIsLost() {
  Direct direct;
  const BlockKey key = BlockKey::FromInteger(5);
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key, StepId(1))}, Slots({0}),
              {10, 11, 12, 13});
  // Bound, moved and copied before anybody says that the weights are new ones.
  (void)direct.Report({Event::Bind(BlockId(1), key), Event::Move(BlockId(1), BlockId(2)),
                       Event::Copy(BlockId(2), BlockId(3)),
                       Event::Copy(BlockId(2), BlockId(4), 2)});
  (void)direct.store().WaitIdle(std::chrono::seconds(0));  // copies the bytes
  if (direct.Tags({2}, 4) != std::vector<int>{10, 11, 12, 13}) return "no page came by key";
  direct.Step(2, {}, {}, {}, 2);
  for (const Seen& row : direct.Read({2, 3, 4}, 12)) {
    if (row.info.reason != Reason::kExternalKv) return "a page of the old weights stayed";
  }
  return direct.Tags({0}, 4) == std::vector<int>{10, 11, 12, 13} ? "" : "the page itself was lost";
}

std::string ProbeCoveredPrefixAppliesTheLog() {
  StoreOptions options = Direct::Options();
  options.landing = Landing::kManual;
  Direct direct(options);
  if (!direct.Begin(1, {Event::Bind(BlockId(0))}, Slots({0})).ok()) return "step 1 was refused";
  const BlockId blocks[] = {BlockId(0)};
  const std::int64_t covered = direct.store().CoveredPrefix(blocks, kDirectBlock);
  if (covered != kDirectBlock) return "covered: " + std::to_string(covered);
  return "";
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

std::string ProbePoisonEmptiesTheTable() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Retain(BlockId(0))}, Slots({0}),
              {10, 11, 12, 13});
  const Snapshot before = direct.Take({0}, 4);
  // Who owns block 0 now is not known.
  StoreCheckpoint::Poison(direct.store(), {}, 3, 1);
  for (const Seen& row : direct.Read({0}, 4)) {
    if (row.info.reason != Reason::kCapacity)
      return "a row was returned that may be of another life";
  }
  if (direct.TagsOf(Direct::Read(before)) != std::vector<int>{10, 11, 12, 13})
    return "a live snapshot has changed";
  return direct.store().last_step() == StepId(3) ? "" : "the last step is another one";
}

std::string ProbePoisonRevokesClaims() {
  Direct direct;
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, Slots({0}));
  (void)direct.Begin(2, {Event::Bind(BlockId(1))}, Slots({1}));
  const Snapshot before = direct.Take({0}, 4);
  StoreCheckpoint::Poison(direct.store(), std::vector<std::uint64_t>{1}, 2, 1);
  if (direct.Submit(2, {20, 21, 22, 23}).ok()) return "a lost step is still in flight";
  if (!direct.Submit(1, {10, 11, 12, 13}).ok()) return "an open step has ended";
  direct.LandAll();
  return direct.TagsOf(Direct::Read(before)) == std::vector<int>{-1, -1, -1, -1}
             ? ""
             : "a claim from before the loss landed";
}

std::string ProbeFirstOfASlotWins() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {Direct::Slot(0, 0), Direct::Slot(0, 0)}, {10, 20});
  const Seen row = direct.Read({0}, 1)[0];
  if (row.tag != 10) return "the second row of a slot was stored";
  return row.info.provenance == Provenance::kKept ? "" : "the ignored row of a slot left no mark";
}

std::string ProbeADerivedSealProtects() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {0, 1, 2}, {10, 11, 12});
  const std::vector<std::int64_t> last = {3};
  StepBatch decode{2, 1, nullptr, 0, last.data(), last.size()};
  decode.derive_events = true;
  (void)direct.store().BeginStep(decode);
  (void)direct.Submit(2, {13});
  (void)direct.Land(2);
  direct.Step(3, {}, {3}, {33});
  return direct.Tags({0}, 4) == std::vector<int>{10, 11, 12, 13}
             ? ""
             : "a row of a block that a decode filled was written over";
}

std::string ProbeBetterPageIsIndexed() {
  Direct direct;
  const BlockKey key = BlockKey::FromInteger(5);
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key, StepId(1))}, Slots({0}),
              {10, -1, 12, 13});
  direct.Step(2, {Event::Bind(BlockId(1)), Event::Seal(BlockId(1), key, StepId(2))}, Slots({1}),
              {20, 21, 22, 23});
  direct.Step(3, {Event::Bind(BlockId(2), key)}, {}, {});
  return direct.Tags({2}, 4) == std::vector<int>{20, 21, 22, 23} ? ""
                                                                 : "a page with a hole came by key";
}

std::string ProbeOverwrittenPageLeavesTheIndex() {
  Direct direct;
  const BlockKey key = BlockKey::FromInteger(5);
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key, StepId(1))}, Slots({0}),
              {10, 11, 12, 13}, 1);
  // New weights compute the block again, in two steps and under the same key.
  direct.Step(2, {Event::Seal(BlockId(0), key, StepId(2))},
              {Direct::Slot(0, 0), Direct::Slot(0, 1)}, {20, 21}, 2);
  direct.Step(3, {}, {Direct::Slot(0, 2), Direct::Slot(0, 3)}, {22, 23}, 2);
  direct.Step(4, {Event::Bind(BlockId(1), key)}, {}, {}, 2);
  if (direct.Tags({1}, 4) != std::vector<int>{20, 21, 22, 23}) {
    return "a page that was computed again did not come by the key of its new seal";
  }
  // The old weights come back, and with them KV of theirs from a tier.
  direct.Step(6, {Event::Bind(BlockId(2), key)}, {}, {}, 1);
  return direct.Tags({2}, 1) == std::vector<int>{-1} ? "" : "rows of other weights came by key";
}

std::string ProbeDeviceRowIsOlderThanWhatIsThere() {
  Direct direct;
  // A step whose slots the host knows writes the row first, though it was begun second.
  (void)direct.BeginDevice(1, {Event::Bind(BlockId(0))}, Slots({0}));
  direct.Step(2, {}, {Direct::Slot(0, 1)}, {20});
  // Another one is dropped: what the device step writes there has been written over all the same.
  (void)direct.Begin(3, {}, {Direct::Slot(0, 2)});
  (void)direct.store().Drop(StepId(3));
  (void)direct.SubmitDevice(1, {Direct::Slot(0, 0), Direct::Slot(0, 1), Direct::Slot(0, 2)},
                            {10, 11, 12});
  direct.LandAll();
  return direct.Tags({0}, 3) == std::vector<int>{10, 20, -1} ? ""
                                                             : "an older row came over a later one";
}

std::string ProbeDeviceStepsLandInOrder() {
  Direct direct;
  // Both write the row; the second is there first.
  (void)direct.BeginDevice(1, {Event::Bind(BlockId(0))}, Slots({0}));
  (void)direct.BeginDevice(2, {}, Slots({0}));
  (void)direct.SubmitDevice(2, {Direct::Slot(0, 1)}, {20});
  if (direct.Land(2)) return "a device step landed before an earlier one";
  (void)direct.SubmitDevice(1, {Direct::Slot(0, 0), Direct::Slot(0, 1)}, {10, 11});
  direct.LandAll();
  return direct.Tags({0}, 2) == std::vector<int>{10, 20} ? ""
                                                         : "the rows are not those of the order";
}

std::string ProbeDeviceDropSparesProtectedRows() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), BlockKey(), StepId(1))},
              Slots({0}), {10, 11, 12, 13});
  (void)direct.BeginDevice(2, {}, Slots({0}));
  (void)direct.store().Drop(StepId(2));
  return direct.Tags({0}, 4) == std::vector<int>{10, 11, 12, 13} ? "" : "a protected row is gone";
}

std::string ProbeDeviceDropSparesClaims() {
  Direct direct;
  (void)direct.BeginDevice(
      1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), BlockKey(), StepId(1))}, Slots({0}));
  (void)direct.SubmitDevice(1, Slots({0}), {10, 11, 12, 13});
  (void)direct.BeginDevice(2, {}, Slots({0}));
  (void)direct.store().Drop(StepId(2));
  direct.LandAll();
  return direct.Tags({0}, 4) == std::vector<int>{10, 11, 12, 13} ? "" : "a protected row is gone";
}

std::string ReasonOf(Direct& direct, Reason reason) {
  const Reason found = direct.Read({0}, 1)[0].info.reason;
  return found == reason ? "" : "the reason is " + std::string(ReasonName(found));
}

std::string ProbeDeviceDropIsCapacity() {
  Direct direct;
  (void)direct.BeginDevice(1, {Event::Bind(BlockId(0))}, Slots({0}));
  (void)direct.store().Drop(StepId(1));
  return ReasonOf(direct, Reason::kCapacity);
}

std::string ProbeACopyHasAUser() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1)), Event::Release(BlockId(1))},
              Slots({0}), {10, 11, 12, 13});
  direct.Step(2, {Event::Copy(BlockId(0), BlockId(1), Event::kAllRows), Event::Release(BlockId(1))},
              {}, {});
  return direct.store().GetStats().releases_below_zero == 0 ? "" : "the copy had no user";
}

std::string ProbeNotAskedInExternalBlock() {
  Direct direct;
  const BlockKey unknown = BlockKey::FromInteger(9);
  direct.Step(1, {Event::Bind(BlockId(0), unknown)}, {NotAsked(Direct::Slot(0, 0))}, {10});
  return ReasonOf(direct, Reason::kNotCaptured);
}

std::string ProbeResetIsCapacity() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, Slots({0}), {10, 11, 12, 13});
  direct.Step(2, {Event::Reset()}, {}, {});
  return ReasonOf(direct, Reason::kCapacity);
}

std::string ProbeCancelledClaimIsCapacity() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, Slots({0}), {10, 11, 12, 13});
  (void)direct.Begin(2, {}, Slots({0}), 2);
  (void)direct.store().Cancel(StepId(2));
  return ReasonOf(direct, Reason::kCapacity);
}

std::string ProbeDeviceRowStaysByKey() {
  Direct direct;
  const BlockKey key = BlockKey::FromInteger(5);
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key, StepId(1))},
              {Direct::Slot(0, 0)}, {10});
  // Block 1 gets the page by key, and one of its own, while a row of it is on its way.
  (void)direct.BeginDevice(2, {}, {Direct::Slot(0, 1)});
  (void)direct.Begin(3, {Event::Bind(BlockId(1), key)}, {Direct::Slot(1, 3)});
  (void)direct.SubmitDevice(2, {Direct::Slot(0, 1)}, {11});
  (void)direct.Submit(3, {30});
  direct.LandAll();
  const std::vector<Seen> rows = direct.Read({1}, 2);
  if (rows[1].tag != 11) return "a row on its way did not land in the copy of its page";
  return rows[1].info.provenance == Provenance::kByKey ? "" : "it does not say that it came by key";
}

std::string ProbeTruncateRevokesDeviceClaims() {
  Direct direct;
  // The rejection of what step 1 is about to write is known before it lands.
  (void)direct.BeginDevice(1, {Event::Bind(BlockId(0))}, Slots({0}));
  (void)direct.BeginDevice(2, {Event::Truncate(BlockId(0), 1, StepId(1))}, {});
  (void)direct.SubmitDevice(1, {Direct::Slot(0, 0), Direct::Slot(0, 1)}, {10, 11});
  (void)direct.SubmitDevice(2, {}, {});
  direct.LandAll();
  return direct.Tags({0}, 2) == std::vector<int>{10, -1} ? "" : "a rejected row landed";
}

// Two pipeline stages see the same steps begin, and land them when they please: a key has to lead
// both to the same pass, or their rows cannot be joined.
std::string ProbePossibleRowsContend() {
  const BlockKey key = BlockKey::FromInteger(5);
  for (const bool at_once : {true, false}) {
    for (const bool reset : {false, true}) {
      Direct direct;
      // Under the key stand one row, then the page of block 1, then nothing more: that of block 2
      // has no more rows.
      direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key, StepId(1))},
                  {Direct::Slot(0, 0)}, {10});
      (void)direct.BeginDevice(2, {Event::Bind(BlockId(1)), Event::Bind(BlockId(2))},
                               Slots({1, 2}));
      (void)direct.SubmitDevice(2, Slots({1, 2}), {20, 21, 22, 23, 30, 31, 32, 33});
      if (at_once) direct.LandAll();
      (void)direct.BeginDevice(3, {Event::Seal(BlockId(1), key, StepId(2))}, {});
      (void)direct.BeginDevice(4, {Event::Seal(BlockId(2), key, StepId(2))}, {});
      std::vector<Event> events;
      if (reset) events.push_back(Event::Reset());
      (void)direct.BeginDevice(5, events, {});
      for (const std::uint64_t step : {3, 4, 5})
        (void)direct.SubmitDevice(step, {}, {});
      direct.LandAll();
      direct.Step(6, {Event::Bind(BlockId(3), key)}, {}, {});
      const std::vector<int> rows = direct.Tags({3}, 4);
      if (!reset && rows != std::vector<int>{20, 21, 22, 23}) {
        return "the first page that could have all rows does not have the key";
      }
      if (reset && rows != std::vector<int>{-1, -1, -1, -1}) {
        return "a page from before the reset came by its key";
      }
    }
  }
  return "";
}

std::string ProbeWeightsOfPossibleRowsStay() {
  const BlockKey key = BlockKey::FromInteger(5);
  for (const bool at_once : {true, false}) {
    Direct direct;
    // A step of older weights might write the page, and does not.
    (void)direct.BeginDevice(1, {Event::Bind(BlockId(0))}, Slots({0}), 1);
    (void)direct.BeginDevice(2, {}, Slots({0}), 2);
    (void)direct.SubmitDevice(1, {}, {});
    (void)direct.SubmitDevice(2, Slots({0}), {10, 11, 12, 13});
    if (at_once) direct.LandAll();
    (void)direct.BeginDevice(3, {Event::Seal(BlockId(0), key, StepId(2))}, {}, 2);
    (void)direct.SubmitDevice(3, {}, {});
    direct.LandAll();
    direct.Step(4, {Event::Bind(BlockId(1), key)}, {}, {}, 2);
    if (direct.Tags({1}, 4) != std::vector<int>{-1, -1, -1, -1}) {
      return "whether a page has its key depends on when its steps landed";
    }
  }
  return "";
}

std::string ProbePinnedPagesStay() {
  StoreOptions options = Direct::Options();
  options.audit = true;
  Direct direct(options);
  const BlockKey key = BlockKey::FromInteger(5);
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key, StepId(1))}, Slots({0}),
              {10, 11, 12, 13});
  // The page of block 1 waits for its rows, and for the audit, when the block is bound again.
  (void)direct.Begin(2, {Event::Bind(BlockId(1)), Event::Seal(BlockId(1), key, StepId(2))},
                     Slots({1}));
  direct.Step(3, {Event::Bind(BlockId(1)), Event::Bind(BlockId(2))}, Slots({2}),
              {200, 201, 202, 203});
  (void)direct.Submit(2, {10, 11, 12, 13});
  direct.LandAll();
  if (direct.Tags({2}, 4) != std::vector<int>{200, 201, 202, 203}) {
    return "a page that a step held was given to another block";
  }
  return "";
}

std::string ProbeHeldPageIsNotEvictedForNothing() {
  StoreOptions options = Direct::Options();
  options.num_pages = 2;
  options.spare_pages = 0;
  Direct direct(options);
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, Slots({0, 1}),
              {10, 11, 12, 13, 20, 21, 22, 23});
  const Snapshot held = direct.Take({0}, 4);
  // The page of block 0 was released first, and stays taken whether it is evicted or not.
  direct.Step(2, {Event::Release(BlockId(0)), Event::Release(BlockId(1)), Event::Bind(BlockId(2))},
              Slots({2}), {30, 31, 32, 33});
  if (direct.Tags({0}, 4) != std::vector<int>{10, 11, 12, 13}) {
    return "a page was evicted that a snapshot has, and no page was free for it";
  }
  return direct.Tags({2}, 4) == std::vector<int>{30, 31, 32, 33}
             ? ""
             : "the page that no snapshot has was not evicted";
}

std::string ProbeUnsealedPagesAreEvictedFirst() {
  StoreOptions options = Direct::Options();
  options.num_pages = 2;
  Direct direct(options);
  direct.Step(1,
              {Event::Bind(BlockId(0)), Event::Bind(BlockId(1)),
               Event::Seal(BlockId(0), BlockKey::FromInteger(5), StepId(1))},
              Slots({0, 1}), {10, 11, 12, 13, 20, 21, 22, 23});
  direct.Step(2, {Event::Release(BlockId(0)), Event::Release(BlockId(1)), Event::Bind(BlockId(2))},
              Slots({2}), {30, 31, 32, 33});
  return direct.Tags({0}, 4) == std::vector<int>{10, 11, 12, 13}
             ? ""
             : "the sealed page was evicted before the unsealed one";
}

}  // namespace waymark::conformance
