// Courses of events for the rules of a step: how its ids end, its rows, and its own seals.
#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/conformance/faults/faults.h"
#include "tests/conformance/faults/probe.h"

namespace waymark::conformance {
namespace {

// ---- how the ids of a step end

std::string ProbeWhatStandsBehindAStepWaits() {
  Direct direct;
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, Slots({0}));
  const Snapshot snapshot = direct.Take({0}, 4);
  (void)direct.Report({Event::Copy(BlockId(0), BlockId(1))});
  if (snapshot.Ready()) return "a snapshot is ready before the step in front of it";
  if (!direct.Submit(1, kTens).ok() || !direct.Land(1)) return "the step did not land";
  if (direct.TagsOf(Direct::Read(snapshot)) != kTens) return "the snapshot has other rows";
  return CompareRows(direct, {1}, kTens, "an event was applied before the step in front of it");
}

std::string ProbeAnOpenStepAtTheEndIsLost() {
  auto direct = std::make_unique<Direct>();
  Fill(*direct);
  (void)direct->Begin(2, {}, {0});
  const Snapshot snapshot = direct->Take({0}, 4);
  direct.reset();
  return Compare(Direct::TagsOf(Direct::Read(snapshot)), {-1, 11, 12, 13},
                 "the forward of a step that was open at the end may have run");
}

std::string ProbeAStepThatDidNotRunHasNoEffect() {
  Direct direct;
  Fill(direct);
  (void)direct.Begin(2, {}, {0, 1});
  (void)direct.store().Cancel(StepId(2));
  return CompareRows(direct, {0}, kTens, "it has cleared rows");
}

// Which weights the KV behind a key has is not known before a step runs.
std::string ProbeAStepThatDidNotRunHasNoVersion() {
  Direct direct;
  FillAndSeal(direct);
  (void)direct.Report({Event::Bind(BlockId(1), kKey)});
  (void)direct.Begin(2, {}, {});
  (void)direct.store().Cancel(StepId(2));
  if (direct.Tags({1}, 4) != kTens) return "a page that came by key was lost";
  direct.Step(3, {}, {}, {}, 2);
  return CompareRows(direct, {1}, {-1}, "a page of the old weights stayed");
}

std::string ProbeALostStepClearsItsRows() {
  Direct direct;
  Fill(direct);
  (void)direct.Begin(2, {}, {0});
  (void)direct.store().Drop(StepId(2));
  if (direct.Tags({0}, 4) != std::vector<int>{-1, 11, 12, 13}) return "the old row is valid";
  return CompareReason(direct, Reason::kCapacity);
}

std::string ProbeAStepWithoutABufferIsLost() {
  Direct direct(Direct::With([](StoreOptions& o) { o.max_steps_in_flight = 1; }));
  Fill(direct);
  (void)direct.Begin(2, {}, {});
  if (!direct.Begin(3, {}, {0}).dropped()) return "a step more than can be open was begun";
  (void)direct.store().Cancel(StepId(2));
  return CompareRows(direct, {0}, {-1, 11, 12, 13}, "its forward has run");
}

std::string ProbeStepsAreToldOnce() {
  Direct direct;
  direct.Step(2, {Event::Bind(BlockId(0))}, Slots({0}), kTens);
  if (direct.Begin(2, {}, {0}).ok()) return "a step was told twice";
  if (direct.Begin(1, {}, {0}).ok()) return "an earlier step was told after a later one";
  return CompareRows(direct, {0}, kTens, "a refused step has written rows");
}

std::string ProbeStepsEndOnce() {
  Direct direct;
  Fill(direct);
  if (direct.Submit(1, {20}).ok()) return "a step was submitted twice";
  return direct.store().Cancel(StepId(1)).ok() ? "a step ended twice" : "";
}

std::string ProbeRefusedIdsComeBack() {
  LateRows rows({10});
  Direct direct;
  if (direct.store().Submit(StepId(1), &rows).ok()) return "a step was submitted that is not open";
  return rows.dones == 1 ? "" : "its ids got no Done()";
}

std::string ProbeAnExceptionLosesRows() {
  class Throwing final : public StepRows {
   public:
    void Land(std::uint32_t, std::span<std::uint8_t* const>, std::span<Reason>) override {
      throw std::runtime_error("no ids");
    }
    void Done() override {}
  };
  Throwing rows;
  Direct direct;
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, {0});
  (void)direct.store().Submit(StepId(1), &rows);
  (void)direct.Land(1);
  return CompareReason(direct, Reason::kNotCaptured);
}

// ---- the rows of a step

std::string ProbeFirstOfASlotWins() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {0, 0}, {10, 20});
  const Seen row = direct.Read({0}, 1)[0];
  if (row.tag != 10) return "the second row of a slot was stored";
  return row.info.provenance == Provenance::kKept ? "" : "the ignored row of a slot left no mark";
}

std::string ProbeFirstThatAskedWins() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {1}, {11});
  direct.Step(2, {}, {NotAsked(0), 0}, {10, 20});
  return CompareRows(direct, {0}, {20, 11}, "a row was lost to one that was not asked for");
}

std::string ProbeSecondOfASlotIsNotCompared() {
  Direct direct(Audited());
  direct.Step(1, {Event::Bind(BlockId(0))}, {0, 0}, {10, 200});
  return CompareRows(direct, {0}, {10}, "a row was compared with another one of its step");
}

std::string ProbeARowWrittenHereIsNotByKey() {
  const BlockKey key = BlockKey::FromInteger(1);
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), key)}, {0, 1}, {10, 11});
  direct.Step(2, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1), key)}, {6}, {22});
  const std::vector<Seen> rows = direct.Read({1}, 3);
  if (rows[0].tag != 10 || rows[2].tag != 22) return "rows are missing";
  const bool found = rows[0].info.provenance == Provenance::kByKey;
  const bool here = rows[2].info.provenance == Provenance::kHere;
  return found && here ? "" : "a row that was written here says that it came by key";
}

std::string ProbeAnIgnoredRowLeavesAMark() {
  Direct direct;
  FillAndSeal(direct);
  direct.Step(2, {}, {0}, {20});
  const Seen row = direct.Read({0}, 1)[0];
  if (row.tag != 10) return "a protected row was written over";
  return row.info.provenance == Provenance::kKept ? "" : "the ignored row left no mark";
}

// Looks from another thread while its rows are being copied.
std::string ProbeBytesBeforeStamps() {
  class Looking final : public StepRows {
   public:
    explicit Looking(Direct& direct) : direct_(direct) {}
    void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
              std::span<Reason> verdicts) override {
      std::thread([this] {
        const BlockId block(0);
        covered = direct_.store().CoveredPrefix({&block, 1}, 4);
      }).join();
      rows_.Land(first, destinations, verdicts);
    }
    void Done() override {}
    std::int64_t covered = -1;

   private:
    Direct& direct_;
    TagRows rows_{kTens};
  };
  Direct direct;
  Looking rows(direct);
  (void)direct.Begin(1, {Event::Bind(BlockId(0))}, Slots({0}));
  (void)direct.store().Submit(StepId(1), &rows);
  (void)direct.Land(1);
  if (rows.covered != 0) return "rows are valid whose bytes are not there";
  return CompareRows(direct, {0}, kTens, "the rows did not land");
}

std::string ProbeACopyHasTheRowsOfItsStep() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {0}, {10});
  const Snapshot seen = direct.Take({0}, 1);
  // The first row goes to the page that is copied for the second one.
  direct.Step(2, {}, {1, 0}, {21, 20});
  return CompareRows(direct, {0}, {20, 21}, "a row went to a page that was copied before it");
}

std::string ProbeAPageThatIsWrittenStays() {
  Direct direct(WithPages(1, 0));
  // Neither block has a user: the page of the first one could be evicted for the second one.
  direct.Step(1,
              {Event::Bind(BlockId(0)), Event::Bind(BlockId(1)), Event::Release(BlockId(0)),
               Event::Release(BlockId(1))},
              {Direct::Slot(0, 0), Direct::Slot(1, 1)}, {10, 21});
  if (direct.Tags({1}, 2) != std::vector<int>{-1, -1}) return "a row landed in another block";
  return CompareRows(direct, {0}, {10}, "a page was evicted while its rows were written");
}

std::string ProbeAPageThatIsComparedStays() {
  Direct direct(
      Direct::With([](StoreOptions& o) { o.num_pages = 1, o.spare_pages = 1, o.audit = true; }));
  FillAndSeal(direct);
  // The page of block 0 is evicted for block 1 after the write to it was ignored.
  direct.Step(2, {Event::Release(BlockId(0)), Event::Bind(BlockId(1))}, {0, 4}, {10, 200});
  return CompareRows(direct, {1}, {200}, "a row was compared with that of another block");
}

std::string ProbeTheAuditVoids() {
  Direct direct(Audited());
  FillAndSeal(direct);
  direct.Step(2, {}, Slots({0}), {200, 201, 202, 203});  // somebody has forgotten a Bind
  return CompareReason(direct, Reason::kAudit);
}

std::string ProbeTheAuditVoidsARow() {
  Direct direct(Audited());
  FillAndSeal(direct);
  direct.Step(2, {}, Slots({0}), {10, 11, 12, 203});  // most of the page agrees
  return CompareRows(direct, {0}, {10, 11, 12, -1}, "a row of other ids is given");
}

// ---- protected rows, and own seals

std::string ProbeSealedRowsAreProtected() {
  Direct direct;
  FillAndSeal(direct);
  direct.Step(2, {}, {0}, {20});
  if (direct.Tags({0}, 4) != kTens) return "a protected row was written over";
  // New weights: the KV is written again, and so are the rows.
  direct.Step(3, {}, {0}, {30}, 2);
  return CompareRows(direct, {0}, {30, 11, 12, 13}, "a row of other weights was kept");
}

std::string ProbeRowsBehindTheSealAreProtected() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1))}, {0}, {10});
  direct.Step(2, {}, {1}, {21});
  direct.Step(3, {}, {1}, {31});
  return CompareRows(direct, {0}, {10, 21}, "a row of a sealed block was written over");
}

std::string ProbeOwnSealsOfAStepThatDidNotRun() {
  Direct direct;
  direct.Step(1, {Event::Bind(BlockId(0))}, {0, 1}, {10, 11});
  direct.Step(2, {}, {2, 3}, {22, 23});  // drafts, which are rejected
  // The step that would have filled the block does not run, and another one does.
  (void)direct.Begin(3, {Event::Seal(BlockId(0), kKey, StepId(3))}, {2, 3});
  (void)direct.store().Cancel(StepId(3));
  direct.Step(4, {}, {2, 3}, {42, 43});
  if (direct.Tags({0}, 4) != std::vector<int>{10, 11, 42, 43}) return "a draft was kept";
  direct.Step(5, {}, {3}, {53});
  return CompareRows(direct, {0}, {10, 11, 42, 53}, "the seal was applied later");
}

std::string ProbeOwnSealsOfAnotherSchedule() {
  Direct direct;
  Fill(direct);
  (void)direct.store().Schedule(StepId(2), 1);
  (void)direct.Report({Event::Seal(BlockId(0), kKey, StepId(2))});
  // The schedule is given up.
  (void)direct.store().Schedule(StepId(3), 1);
  direct.Step(3, {}, {3}, {33});
  direct.Step(4, {}, {3}, {43});
  if (direct.Tags({0}, 4) != std::vector<int>{10, 11, 12, 43}) return "the seal was applied";
  // One that is reported between two schedules is of the next step.
  (void)direct.Report({Event::Seal(BlockId(0), kKey, StepId(0))});
  (void)direct.store().Schedule(StepId(5), 1);
  direct.Step(5, {}, {}, {});
  direct.Step(6, {}, {3}, {63});
  return CompareRows(direct, {0}, {10, 11, 12, 43}, "the seal was not applied");
}

std::string ProbeOwnSealsOfALostStep() {
  Direct direct;
  Fill(direct);
  (void)direct.Begin(2, {Event::Seal(BlockId(0), kKey, StepId(2))}, {3});
  (void)direct.store().Drop(StepId(2));
  direct.Step(3, {}, {3}, {33});
  direct.Step(4, {}, {3}, {43});
  return CompareRows(direct, {0}, {10, 11, 12, 33}, "a row of a sealed block was written over");
}

std::string ProbeOwnSealsComeAfterTheRows() {
  Direct direct;
  // Two blocks of one batch under one key: the one that is sealed first keeps it, whichever is
  // written first.
  direct.Step(1,
              {Event::Bind(BlockId(0)), Event::Bind(BlockId(1)),
               Event::Seal(BlockId(1), kKey, StepId(1)), Event::Seal(BlockId(0), kKey, StepId(1))},
              Slots({0, 1}), {10, 11, 12, 13, 20, 21, 22, 23});
  direct.Step(2, {Event::Bind(BlockId(2), kKey)}, {}, {});
  if (direct.Tags({2}, 4) != std::vector<int>{20, 21, 22, 23})
    return "the block that was sealed second came by key";
  // A rejected draft is run again in the very step that seals its block.
  direct.Step(3, {Event::Bind(BlockId(3))}, {Direct::Slot(3, 0)}, {30});
  direct.Step(4, {Event::Seal(BlockId(3), kKey, StepId(4))}, {Direct::Slot(3, 0)}, {40});
  if (direct.Tags({3}, 1) != std::vector<int>{40})
    return "a row of the seal's own step was ignored";
  direct.Step(5, {}, {Direct::Slot(3, 0)}, {50});
  return CompareRows(direct, {3}, {40}, "a row of a later step was not ignored");
}

std::string ProbeSealStaysWithItsLife() {
  Direct direct;
  // Announced full, then taken from its owner and given to another one, all in one batch.
  direct.Step(1,
              {Event::Bind(BlockId(0)), Event::Seal(BlockId(0), kKey, StepId(1)),
               Event::Release(BlockId(0)), Event::Bind(BlockId(0))},
              Slots({0}), kTens);
  direct.Step(2, {Event::Bind(BlockId(1), kKey)}, {}, {});
  return CompareRows(direct, {1}, {-1}, "rows of the new life came by the old key");
}

std::string ProbeOwnSealMovesWithItsBlock() {
  Direct direct;
  // Sealed for the step to come, and swapped before it begins.
  direct.Step(1, {Event::Bind(BlockId(0)), Event::Bind(BlockId(1))}, Slots({0, 1}),
              {10, 11, 12, 13, 20, 21, 22, 23});
  (void)direct.Report({Event::Seal(BlockId(0), kKey, StepId(0)),
                       Event::Move(BlockId(0), BlockId(1), true),
                       Event::Move(BlockId(1), BlockId(0))});
  direct.Step(2, {}, {}, {});
  direct.Step(3, {Event::Bind(BlockId(2), kKey)}, {}, {});
  return CompareRows(direct, {2}, kTens, "the seal was applied to the block that moved in");
}

std::string ProbeALateSealComesBeforeTheRows() {
  Direct direct;
  Fill(direct);
  direct.Step(2, {Event::Seal(BlockId(0), kKey, StepId(1))}, {0}, {20});
  return CompareRows(direct, {0}, kTens, "a row of a block that had been full was written over");
}

std::string ProbeALateSealIsOfItsLife() {
  Direct direct;
  Fill(direct);
  direct.Step(2, {Event::Bind(BlockId(0))}, {0}, {20});
  direct.Step(3, {Event::Seal(BlockId(0), kKey, StepId(1))}, {0}, {30});
  return CompareRows(direct, {0}, {30}, "a seal of the life before protects a row");
}

std::string ProbeARewindTakesTheSeal() {
  Direct direct;
  FillAndSeal(direct);
  (void)direct.Report({Event::Truncate(BlockId(0), 2, StepId(1))});
  direct.Step(2, {}, {2, 3}, {22, 23});
  direct.Step(3, {}, {2}, {32});
  return CompareRows(direct, {0}, {10, 11, 32, 23}, "a row was kept that is not sealed");
}

constexpr Fault kFaults[] = {
    // How the ids of a step end.
    {"open_step_is_skipped", ProbeWhatStandsBehindAStepWaits, "vllm",
     "draft=.5 behind=4 preempt=.1"},
    {"open_step_is_lost", ProbeWhatStandsBehindAStepWaits},
    {"open_step_at_the_end_did_not_run", ProbeAnOpenStepAtTheEndIsLost},
    {"step_not_run_is_written_as_lost", ProbeAStepThatDidNotRunHasNoEffect},
    {"step_that_did_not_run_decides_keyed_binds", ProbeAStepThatDidNotRunHasNoVersion},
    {"lost_step_leaves_the_old_rows", ProbeALostStepClearsItsRows, "vllm",
     "draft=.6 no_truncate=1 drop=.1"},
    {"lost_step_is_not_captured", ProbeALostStepClearsItsRows, "vllm", "drop=.1"},
    {"step_without_a_buffer_did_not_run", ProbeAStepWithoutABufferIsLost, "vllm",
     "draft=.5 behind=4 ring=3 no_truncate=1"},
    {"told_number_is_told_again", ProbeStepsAreToldOnce},
    {"step_ends_twice", ProbeStepsEndOnce},
    {"refused_ids_get_no_done", ProbeRefusedIdsComeBack},
    {"rows_behind_an_exception_are_valid", ProbeAnExceptionLosesRows},
    // The rows of a step.
    {"last_of_a_slot_wins", ProbeFirstOfASlotWins},
    {"row_that_did_not_ask_hides_one_that_did", ProbeFirstThatAskedWins, "megatron",
     "full_hit=.7 mute=.3 bump=.1"},
    {"second_row_of_a_slot_is_compared", ProbeSecondOfASlotIsNotCompared},
    {"rows_written_here_are_by_key", ProbeARowWrittenHereIsNotByKey},
    {"ignored_row_leaves_no_mark", ProbeAnIgnoredRowLeavesAMark, "megatron", "full_hit=.7"},
    {"landing_forgets_the_mark", ProbeFirstOfASlotWins},
    {"stamp_before_the_bytes", ProbeBytesBeforeStamps},
    {"chunk_goes_on_behind_a_copied_page", ProbeACopyHasTheRowsOfItsStep},
    {"pages_of_a_chunk_are_not_pinned", ProbeAPageThatIsWrittenStays},
    {"no_pins", ProbeAPageThatIsWrittenStays},
    {"ignored_rows_do_not_pin", ProbeAPageThatIsComparedStays},
    {"audit_compares_and_forgets", ProbeTheAuditVoids},
    {"a_row_of_other_ids_stays", ProbeTheAuditVoidsARow},
    // Protected rows, and own seals.
    {"no_protected_rows", ProbeSealedRowsAreProtected, "megatron", "full_hit=.7"},
    {"another_version_is_ignored", ProbeSealedRowsAreProtected, "megatron", "full_hit=.7 bump=.1"},
    {"rows_behind_the_seal_are_not_protected", ProbeRowsBehindTheSealAreProtected, "megatron",
     WAYMARK_FULL WAYMARK_HARM},
    {"own_seals_of_a_step_that_did_not_run", ProbeOwnSealsOfAStepThatDidNotRun, "vllm",
     "draft=.6 no_truncate=1 cancel=.1"},
    {"own_seals_survive_another_schedule", ProbeOwnSealsOfAnotherSchedule},
    {"discarded_seals_are_applied_later", ProbeOwnSealsOfAStepThatDidNotRun},
    {"own_seals_of_a_lost_step_are_discarded", ProbeOwnSealsOfALostStep, "megatron",
     "full_hit=.6 drop=.2"},
    {"own_seals_before_the_rows", ProbeOwnSealsComeAfterTheRows, "vllm", "draft=.6 no_truncate=1"},
    {"own_seal_is_applied_when_reported", ProbeOwnSealsComeAfterTheRows},
    {"own_seal_reaches_the_next_life", ProbeSealStaysWithItsLife},
    {"own_seal_stays_behind_a_move", ProbeOwnSealMovesWithItsBlock},
    {"late_seal_waits_for_the_next_step", ProbeALateSealComesBeforeTheRows, "megatron",
     "full_hit=.7 completion_seal=1 draft=.4"},
    {"late_seal_reaches_a_later_life", ProbeALateSealIsOfItsLife},
    {"rewind_stays_in_the_sealed_page", ProbeARewindTakesTheSeal, "vllm",
     "rewind=.3 draft=.6 tier=.9"},
};

}  // namespace

std::span<const Fault> StepFaults() {
  return kFaults;
}

}  // namespace waymark::conformance
