// The seeded faults of the store, and what must notice each.
//
// Every fault breaks one rule; faults.txt has the code. A probe notices it: a short course of
// events on a store of its own. Those that an engine can meet are noticed by a simulator, too: a
// scenario then has wrong, unexplained or wrongly explained rows, and has none without the fault.
#ifndef WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULTS_H_
#define WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULTS_H_

#include <span>
#include <string>

namespace waymark::conformance {

struct Fault {
  const char* name;                // as in faults.txt
  std::string (*probe)();          // empty when the store keeps the rule, else what it did instead
  const char* engine = nullptr;    // "vllm", "megatron"; null: no simulator has to notice it
  const char* features = nullptr;  // of the scenario
};

[[nodiscard]] std::span<const Fault> Faults();

// probes.cc: blocks, pages, keys and reasons.
std::string ProbeALifeEndsWithABind();
std::string ProbeADerivedBindBeginsALife();
std::string ProbeADerivedSealProtects();
std::string ProbeLifeStartsWithTheNextStep();
std::string ProbeTruncateFollowsAMove();
std::string ProbeTruncateKnowsItsStep();
std::string ProbeTruncateClearsMissingRows();
std::string ProbeSealsAreOfStepsThatWereTold();
std::string ProbeMovesHappenAtOnce();
std::string ProbeEventsInTheirOrder();
std::string ProbeSeenRowsStay();
std::string ProbeRowsAboveTheMarkAreCopied();
std::string ProbeASharedPageIsCopied();
std::string ProbeAPartialCopyHasItsRows();
std::string ProbeACopyHasAUser();
std::string ProbeTheSourceOfACopyStays();
std::string ProbeACopiedRowStaysByKey();
std::string ProbeACopyStaysSealed();
std::string ProbeASealNeverRebinds();
std::string ProbeBetterPageIsIndexed();
std::string ProbeLostIdsDoNotDecide();
std::string ProbeAKeyMovesWithItsBlock();
std::string ProbeAKeyStaysBehindARewind();
std::string ProbeRowsBehindTheSealContend();
std::string ProbeKeyedBindKnowsItsVersion();
std::string ProbePageOfAnotherVersionIsLost();
std::string ProbeByKeyIsMarked();
std::string ProbeKeysAreOfAVersion();
std::string ProbeKeysAreOfAPage();
std::string ProbeOverwrittenPageLeavesTheIndex();
std::string ProbePageOfTwoVersionsHasNoKey();
std::string ProbeVersionsOfManySteps();
std::string ProbeReferencedPagesStay();
std::string ProbeUnsealedPagesAreEvictedFirst();
std::string ProbeASealOutlivesItsPage();
std::string ProbeASlowReaderTakesNoPage();
std::string ProbeHeldPageIsNotEvictedForNothing();
std::string ProbeAbsentRowsKeepTheirReason();
std::string ProbeNotAskedIsNotCaptured();
std::string ProbeNotAskedInExternalBlock();
std::string ProbeResetIsCapacity();
std::string ProbeLayersAreOfOneStep();

// step_probes.cc: a step.
std::string ProbeWhatStandsBehindAStepWaits();
std::string ProbeAnOpenStepAtTheEndIsLost();
std::string ProbeAStepThatDidNotRunHasNoEffect();
std::string ProbeAStepThatDidNotRunHasNoVersion();
std::string ProbeALostStepClearsItsRows();
std::string ProbeAStepWithoutABufferIsLost();
std::string ProbeStepsAreToldOnce();
std::string ProbeStepsEndOnce();
std::string ProbeRefusedIdsComeBack();
std::string ProbeAnExceptionLosesRows();
std::string ProbeFirstOfASlotWins();
std::string ProbeFirstThatAskedWins();
std::string ProbeSecondOfASlotIsNotCompared();
std::string ProbeAnIgnoredRowLeavesAMark();
std::string ProbeBytesBeforeStamps();
std::string ProbeACopyHasTheRowsOfItsStep();
std::string ProbeAPageThatIsWrittenStays();
std::string ProbeAPageThatIsComparedStays();
std::string ProbeTheAuditVoids();
std::string ProbeLostSlotsClearTheirRange();
std::string ProbeLostSlotsSpareProtectedRows();
std::string ProbeRowsOutsideAreIgnored();
std::string ProbeTheRangeSaysWhoAsked();
std::string ProbeSealedRowsAreProtected();
std::string ProbeRowsBehindTheSealAreProtected();
std::string ProbeOwnSealsOfAStepThatDidNotRun();
std::string ProbeOwnSealsOfAnotherSchedule();
std::string ProbeOwnSealsOfALostStep();
std::string ProbeOwnSealsComeAfterTheRows();
std::string ProbeSealStaysWithItsLife();
std::string ProbeOwnSealMovesWithItsBlock();
std::string ProbeALateSealComesBeforeTheRows();
std::string ProbeALateSealIsOfItsLife();
std::string ProbeARewindTakesTheSeal();

// wait_probes.cc: steps that wait.
std::string ProbeAFetchedStepIsDone();
std::string ProbeAFetchedStepHasItsRows();
std::string ProbeAFetchedStepHasItsSlots();
std::string ProbeNoMoreIsFetchedThanHasRoom();
std::string ProbeRoomOfFetchedStepsComesBack();
std::string ProbeIdsAreNotWaitedForForEver();
std::string ProbeAStepMayBeOpenForLong();
std::string ProbeOnlyTheStepThatHangsIsLost();
std::string ProbeAbandonedIdsAreDoneWhenTheyCome();
std::string ProbeAStepIsOverdueOnce();
std::string ProbeTheEndWaitsForAllTogether();
std::string ProbeAVerdictWakes();
std::string ProbeQueriesApplyNothing();

// log_probes.cc: the log.
std::string ProbeASnapshotIsTakenInItsPlace();
std::string ProbeTheRingComesFirst();
std::string ProbeTheEndOfTheLogIsOfOneMoment();
std::string ProbeBeginOfAnEarlierScheduleIsRefused();
std::string ProbeADoubledMessageIsIgnored();
std::string ProbeALostMessagePoisons();
std::string ProbeAVerdictNeedsNoRoom();
std::string ProbeEveryLossIsPoisoned();
std::string ProbePoisonEmptiesTheTable();
std::string ProbePoisonEmptiesTheIndex();
std::string ProbePoisonForgetsOwnSeals();
std::string ProbePoisonLeavesUsers();
std::string ProbeASealAfterPoisonCanBeTakenBack();
std::string ProbeTicketIsRecycledOnce();

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULTS_H_
