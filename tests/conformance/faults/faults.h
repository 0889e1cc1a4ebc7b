// The seeded faults of the store, and what must notice each.
//
// Every fault breaks one rule; faults.txt has the code. The engine simulators notice most of them:
// a scenario then has wrong, unexplained or wrongly explained rows, and has none without the
// fault. The others have a probe, a short sequence of events on a store of its own.
#ifndef WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULTS_H_
#define WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULTS_H_

#include <span>
#include <string>

namespace waymark::conformance {

struct Fault {
  const char* name;        // as in faults.txt
  const char* engine;      // "vllm", "megatron"; null: the probe notices
  const char* features;    // of the scenario
  std::string (*probe)();  // empty when the store keeps the rule, else what it did instead
};

[[nodiscard]] std::span<const Fault> Faults();

// Probes; see probes.cc and, for those of the log, log_probes.cc.
std::string ProbeEveryLossIsPoisoned();
std::string ProbeASealAfterPoisonCanBeTakenBack();
std::string ProbeEndsAreNeverLost();
std::string ProbeTicketIsRecycledOnce();
std::string ProbeReferencedPagesStay();
std::string ProbeACopyHasAUser();
std::string ProbeAbsentRowsKeepTheirReason();
std::string ProbeSealsComeAfterTheClaims();
std::string ProbeSealStaysWithItsLife();
std::string ProbeOwnSealMovesWithItsBlock();
std::string ProbeLifeStartsWithTheNextStep();
std::string ProbeTruncateFollowsAMove();
std::string ProbeKeyedBindKnowsItsVersion();
std::string ProbePageOfAnotherVersionIsLost();
std::string ProbeFirstOfASlotWins();
std::string ProbeADerivedSealProtects();
std::string ProbeBetterPageIsIndexed();
std::string ProbeOverwrittenPageLeavesTheIndex();
std::string ProbeDeviceRowIsOlderThanWhatIsThere();
std::string ProbeDeviceStepsLandInOrder();
std::string ProbeDeviceDropSparesProtectedRows();
std::string ProbeDeviceDropSparesClaims();
std::string ProbeDeviceDropIsCapacity();
std::string ProbeNotAskedInExternalBlock();
std::string ProbeResetIsCapacity();
std::string ProbeCancelledClaimIsCapacity();
std::string ProbeDeviceRowStaysByKey();
std::string ProbeTruncateRevokesDeviceClaims();
std::string ProbePossibleRowsContend();
std::string ProbeWeightsOfPossibleRowsStay();
std::string ProbePinnedPagesStay();
std::string ProbeHeldPageIsNotEvictedForNothing();
std::string ProbeUnsealedPagesAreEvictedFirst();
std::string ProbeCoveredPrefixAppliesTheLog();
std::string ProbeBeginOfAnEarlierScheduleIsRefused();
std::string ProbePoisonEmptiesTheTable();
std::string ProbePoisonRevokesClaims();

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULTS_H_
