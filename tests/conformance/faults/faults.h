// The seeded faults of the store, and what must notice each.
//
// Every fault breaks one rule; faults.txt has the code. A probe notices it: a short course of
// events on a store of its own. Those that an engine can meet are noticed by a simulator, too: a
// scenario then has wrong, unexplained or wrongly explained rows, and has none without the fault.
#ifndef WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULTS_H_
#define WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULTS_H_

#include <span>
#include <string>

// Features of scenarios: all that an engine does, and all that harms.
#define WAYMARK_FULL                                                                       \
  "draft=.5 preempt=.03 abort=.01 bump=.02 fork=.05 partial=.3 tier=.5 swap=.3 stream=.1 " \
  "rewind=.03 full_hit=.4 pad=.3 behind=3 shuffle=1 "

#define WAYMARK_HARM "drop=.03 reset=.005 external=.1 mute=.1 silent=.03 "

namespace waymark::conformance {

struct Fault {
  const char* name;                // as in faults.txt
  std::string (*probe)();          // empty when the store keeps the rule, else what it did instead
  const char* engine = nullptr;    // "vllm", "megatron"; null: no simulator has to notice it
  const char* features = nullptr;  // of the scenario
};

// Of blocks, pages, keys and reasons (probes.cc); of a step (step_probes.cc); of steps that wait
// (wait_probes.cc); of the log (log_probes.cc); and of rows by key (tier_probes.cc).
[[nodiscard]] std::span<const Fault> BlockFaults();
[[nodiscard]] std::span<const Fault> StepFaults();
[[nodiscard]] std::span<const Fault> WaitFaults();
[[nodiscard]] std::span<const Fault> LogFaults();
[[nodiscard]] std::span<const Fault> TierFaults();

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_FAULTS_FAULTS_H_
