// The codes of the step path, and the names of numbers.
#include <string>

#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

static_assert(static_cast<int>(StepRule::kScheduleAhead) == WM_RULE_SCHEDULE_AHEAD &&
              static_cast<int>(StepRule::kLogFull) == WM_RULE_LOG_FULL &&
              static_cast<int>(StepRule::kBusy) == WM_RULE_BUSY &&
              static_cast<int>(StepRule::kForked) == WM_RULE_FORKED &&
              static_cast<int>(StepRule::kIdsRows) == WM_RULE_IDS &&
              static_cast<int>(StepRule::kIdsExperts) < WM_RULE_ARGUMENT);

static_assert(static_cast<int>(Reason::kNone) == WM_REASON_NONE &&
              static_cast<int>(Reason::kNeverWritten) == WM_REASON_NEVER_WRITTEN &&
              static_cast<int>(Reason::kNotCaptured) == WM_REASON_NOT_CAPTURED &&
              static_cast<int>(Reason::kExternalKv) == WM_REASON_EXTERNAL_KV &&
              static_cast<int>(Reason::kCapacity) == WM_REASON_CAPACITY &&
              static_cast<int>(Reason::kInvalidId) == WM_REASON_INVALID_ID &&
              static_cast<int>(Reason::kAudit) == WM_REASON_AUDIT &&
              static_cast<int>(Reason::kReleased) == WM_REASON_RELEASED &&
              static_cast<int>(Reason::kNotTold) == WM_REASON_NOT_TOLD &&
              kNumReasons == WM_NUM_REASONS);
static_assert(static_cast<int>(Cause::kNoBuffer) == WM_CAUSE_NO_BUFFER &&
              static_cast<int>(Cause::kStepDropped) == WM_CAUSE_STEP_DROPPED &&
              static_cast<int>(Cause::kOtherRank) == WM_CAUSE_OTHER_RANK &&
              static_cast<int>(Cause::kLogFull) == WM_CAUSE_LOG_FULL &&
              static_cast<int>(Cause::kEventsLost) == WM_CAUSE_EVENTS_LOST &&
              static_cast<int>(Cause::kReset) == WM_CAUSE_RESET &&
              static_cast<int>(Cause::kNoPage) == WM_CAUSE_NO_PAGE &&
              static_cast<int>(Cause::kHeldByReaders) == WM_CAUSE_HELD_BY_READERS &&
              static_cast<int>(Cause::kEvicted) == WM_CAUSE_EVICTED &&
              static_cast<int>(Cause::kNoMemory) == WM_CAUSE_NO_MEMORY &&
              static_cast<int>(Cause::kStoreFailed) == WM_CAUSE_STORE_FAILED &&
              static_cast<int>(Cause::kUnreachable) == WM_CAUSE_UNREACHABLE &&
              static_cast<int>(Cause::kAbsent) == WM_CAUSE_ABSENT &&
              static_cast<int>(Cause::kDamaged) == WM_CAUSE_DAMAGED &&
              static_cast<int>(Cause::kTimeout) == WM_CAUSE_TIMEOUT &&
              static_cast<int>(Cause::kSkipped) == WM_CAUSE_SKIPPED &&
              static_cast<int>(Cause::kRefused) == WM_CAUSE_REFUSED &&
              static_cast<int>(Cause::kUnnamed) == WM_CAUSE_UNNAMED && kNumCauses == WM_NUM_CAUSES);
static_assert(static_cast<int>(Provenance::kHere) == WM_PROVENANCE_HERE &&
              static_cast<int>(Provenance::kKept) == WM_PROVENANCE_KEPT &&
              static_cast<int>(Provenance::kByKey) == WM_PROVENANCE_BY_KEY &&
              static_cast<int>(Provenance::kUnknown) == WM_PROVENANCE_UNKNOWN &&
              kNumProvenances == WM_PROVENANCE_UNKNOWN + 1 &&
              kUnknownVersion == WM_UNKNOWN_VERSION);

std::string Describe(const wm_code& code) {
  if (code.code == WM_OK) return "OK";
  if (code.rule == WM_RULE_NONE) {
    return code.code == WM_INTERNAL ? "a defect of the library, or out of memory"
                                    : "code " + std::to_string(code.code);
  }
  if (code.rule == WM_RULE_ARGUMENT) {
    return "argument " + std::to_string(code.index) +
           " (from 0): must not be null, garbage or too short; the value is " +
           std::to_string(code.value);
  }
  if (code.rule < WM_RULE_NONE || code.rule > WM_RULE_ARGUMENT) {
    return "unknown rule " + std::to_string(code.rule);
  }
  const StepCode of{code.code, static_cast<StepRule>(code.rule), code.index, code.value};
  return std::string(of.ToStatus().message());
}

const char* StatusName(wm_status status) noexcept {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS"};
  static_assert(std::size(kNames) == WM_DATA_LOSS + 1);
  return status >= 0 && status <= WM_DATA_LOSS ? kNames[status] : "unknown";
}

// The names are literals: they end with a 0.
const char* ReasonText(std::int32_t reason) noexcept {
  if (reason < 0 || reason >= WM_NUM_REASONS) return "unknown";
  return ReasonName(static_cast<Reason>(reason)).data();
}
const char* ProvenanceText(std::int32_t provenance) noexcept {
  if (provenance < 0 || provenance >= kNumProvenances) return "unknown";
  return ProvenanceName(static_cast<Provenance>(provenance)).data();
}
const char* CauseText(std::int32_t cause) noexcept {
  if (cause < 0 || cause >= WM_NUM_CAUSES) return "unknown";
  return CauseName(static_cast<Cause>(cause)).data();
}

wm_status DescribeCode(const wm_code* code, wm_message* text) noexcept {
  return Guard(text, [&] {
    Arguments check;
    check.Pointer(code, "code");
    if (check.ok()) WriteText(Describe(*code), text);
    return check.status();
  });
}

}  // namespace

wm_code ToCode(const StepCode& code) {
  return {code.code, static_cast<std::int32_t>(code.rule), code.index, code.value};
}

void FillNames(wm_api_v1& api) {
  api.status_name = &StatusName;
  api.reason_name = &ReasonText;
  api.provenance_name = &ProvenanceText;
  api.cause_name = &CauseText;
  api.describe_code = &DescribeCode;
}

}  // namespace waymark::abi
