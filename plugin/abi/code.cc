// The codes of the step path, and the names of numbers.
#include <string>

#include "plugin/abi/fill.h"

namespace waymark::abi {
namespace {

static_assert(static_cast<int>(StepRule::kStepNotIncreasing) == WM_RULE_STEP_NOT_INCREASING &&
              static_cast<int>(StepRule::kTooManyRows) == WM_RULE_TOO_MANY_ROWS &&
              static_cast<int>(StepRule::kUnknownEvent) == WM_RULE_UNKNOWN_EVENT &&
              static_cast<int>(StepRule::kBlockOutOfRange) == WM_RULE_BLOCK_OUT_OF_RANGE &&
              static_cast<int>(StepRule::kSrcOutOfRange) == WM_RULE_SRC_OUT_OF_RANGE &&
              static_cast<int>(StepRule::kKeyTooLong) == WM_RULE_KEY_TOO_LONG &&
              static_cast<int>(StepRule::kRowsOutOfRange) == WM_RULE_ROWS_OUT_OF_RANGE &&
              static_cast<int>(StepRule::kSelfCopy) == WM_RULE_SELF_COPY &&
              static_cast<int>(StepRule::kDuplicateMove) == WM_RULE_DUPLICATE_MOVE &&
              static_cast<int>(StepRule::kSealStep) == WM_RULE_SEAL_STEP &&
              static_cast<int>(StepRule::kSlotOutOfRange) == WM_RULE_SLOT_OUT_OF_RANGE &&
              static_cast<int>(StepRule::kDeviceSlots) == WM_RULE_DEVICE_SLOTS &&
              static_cast<int>(StepRule::kStepNotInFlight) == WM_RULE_STEP_NOT_IN_FLIGHT &&
              static_cast<int>(StepRule::kRingFull) == WM_RULE_RING_FULL &&
              static_cast<int>(StepRule::kScheduleAhead) == WM_RULE_SCHEDULE_AHEAD &&
              static_cast<int>(StepRule::kLogFull) == WM_RULE_LOG_FULL &&
              static_cast<int>(StepRule::kBusy) == WM_RULE_BUSY &&
              static_cast<int>(StepRule::kRowForms) == WM_RULE_ROW_FORMS &&
              static_cast<int>(StepRule::kIndexBytes) == WM_RULE_INDEX_BYTES &&
              static_cast<int>(StepRule::kBlockTokens) == WM_RULE_BLOCK_TOKENS &&
              static_cast<int>(StepRule::kRowBlock) == WM_RULE_ROW_BLOCK &&
              static_cast<int>(StepRule::kRowOffset) == WM_RULE_ROW_OFFSET &&
              static_cast<int>(StepRule::kUnfinishedMove) == WM_RULE_UNFINISHED_MOVE &&
              static_cast<int>(StepRule::kForked) == WM_RULE_FORKED &&
              static_cast<int>(StepRule::kStepJump) == WM_RULE_STEP_JUMP &&
              static_cast<int>(StepRule::kRankRows) == WM_RULE_RANK_ROWS &&
              static_cast<int>(StepRule::kDerivedEvents) == WM_RULE_DERIVED_EVENTS);
static_assert(static_cast<int>(Reason::kNone) == WM_REASON_NONE &&
              static_cast<int>(Reason::kNeverWritten) == WM_REASON_NEVER_WRITTEN &&
              static_cast<int>(Reason::kNotCaptured) == WM_REASON_NOT_CAPTURED &&
              static_cast<int>(Reason::kExternalKv) == WM_REASON_EXTERNAL_KV &&
              static_cast<int>(Reason::kCapacity) == WM_REASON_CAPACITY &&
              static_cast<int>(Reason::kInvalidId) == WM_REASON_INVALID_ID &&
              static_cast<int>(Reason::kAudit) == WM_REASON_AUDIT && kNumReasons == WM_NUM_REASONS);
static_assert(static_cast<int>(Provenance::kHere) == WM_PROVENANCE_HERE &&
              static_cast<int>(Provenance::kKept) == WM_PROVENANCE_KEPT &&
              static_cast<int>(Provenance::kByKey) == WM_PROVENANCE_BY_KEY &&
              kNumProvenances == WM_PROVENANCE_BY_KEY + 1);

constexpr auto kLastRoutingRule = static_cast<std::int32_t>(kernels::RoutingRule::kOtherShape);

std::int32_t RuleOf(CaptureRule rule) {
  switch (rule) {
    case CaptureRule::kNone:
      return WM_RULE_NONE;
    case CaptureRule::kStepNotInFlight:
      return WM_RULE_STEP_NOT_IN_FLIGHT;
    case CaptureRule::kLayerOutOfRange:
      return WM_RULE_LAYER_OUT_OF_RANGE;
    case CaptureRule::kLayerNotHandedOver:
      return WM_RULE_LAYER_NOT_HANDED_OVER;
    case CaptureRule::kNullData:
      return WM_RULE_NULL_DATA;
    case CaptureRule::kIdType:
      return WM_RULE_ID_TYPE;
    case CaptureRule::kTooManyRows:
      return WM_RULE_TOO_MANY_ROWS;
    case CaptureRule::kTooFewColumns:
      return WM_RULE_TOO_FEW_COLUMNS;
    case CaptureRule::kWrongLayers:
      return WM_RULE_WRONG_LAYERS;
    case CaptureRule::kRingFull:
      return WM_RULE_RING_FULL;
    case CaptureRule::kTransport:
      return WM_RULE_TRANSPORT;
    case CaptureRule::kLayerNotRouted:
      return WM_RULE_LAYER_NOT_ROUTED;
    case CaptureRule::kRouting:
      return WM_RULE_ROUTING;
  }
  return WM_RULE_NONE;
}

std::string Describe(const wm_code& code) {
  if (code.code == WM_OK) return "OK";
  const auto capture = [&code](CaptureRule rule) {
    const absl::Status status = CaptureCode{code.code, rule, code.value, code.limit}.ToStatus();
    return std::string(status.message());
  };
  switch (code.rule) {
    case WM_RULE_NONE:
      if (code.code == WM_UNIMPLEMENTED) return "CUDA was not built into this library";
      return code.code == WM_INTERNAL ? "a defect of the library, or out of memory"
                                      : "code " + std::to_string(code.code);
    case WM_RULE_TOO_MANY_ROWS:
      if (code.limit != 0) return capture(CaptureRule::kTooManyRows);
      return "rows: must be in [0, the most that the store and the session take]; they are " +
             std::to_string(code.value);
    case WM_RULE_RING_FULL:
      return "there must be room for one more step; on their way are " + std::to_string(code.value);
    case WM_RULE_LAYER_OUT_OF_RANGE:
      return capture(CaptureRule::kLayerOutOfRange);
    case WM_RULE_LAYER_NOT_HANDED_OVER:
      return capture(CaptureRule::kLayerNotHandedOver);
    case WM_RULE_LAYER_NOT_ROUTED:
      return capture(CaptureRule::kLayerNotRouted);
    case WM_RULE_NULL_DATA:
      return capture(CaptureRule::kNullData);
    case WM_RULE_ID_TYPE:
      return capture(CaptureRule::kIdType);
    case WM_RULE_TOO_FEW_COLUMNS:
      return capture(CaptureRule::kTooFewColumns);
    case WM_RULE_WRONG_LAYERS:
      return capture(CaptureRule::kWrongLayers);
    case WM_RULE_TRANSPORT:
      return "the transport has failed; see session_status";
    case WM_RULE_ARGUMENT:
      return "argument " + std::to_string(code.index) +
             " (from 0): must not be null, garbage or too short; the value is " +
             std::to_string(code.value);
    default:
      break;
  }
  if (code.rule > WM_RULE_NONE && code.rule <= WM_RULE_DERIVED_EVENTS) {
    const absl::Status status =
        StepCode{code.code, static_cast<StepRule>(code.rule), code.index, code.value}.ToStatus();
    return std::string(status.message());
  }
  if (code.rule > WM_RULE_ROUTING && code.rule <= WM_RULE_ROUTING + kLastRoutingRule &&
      code.index <= static_cast<std::uint64_t>(kernels::RoutingArgument::kStream)) {
    return kernels::RoutingCode{static_cast<kernels::RoutingArgument>(code.index),
                                static_cast<kernels::RoutingRule>(code.rule - WM_RULE_ROUTING),
                                code.value, code.limit}
        .ToString();
  }
  return "unknown rule " + std::to_string(code.rule);
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
  return {code.code, static_cast<std::int32_t>(code.rule), code.index, code.value, 0};
}
wm_code ToCode(wm_status status, const kernels::RoutingCode& code) {
  if (code.ok()) return {};
  return {status, WM_RULE_ROUTING + static_cast<std::int32_t>(code.rule),
          static_cast<std::uint64_t>(code.argument), code.value, code.bound};
}
wm_code ToCode(const CaptureCode& code) {
  if (code.rule == CaptureRule::kRouting) return ToCode(code.code, code.routing);
  return {code.code, RuleOf(code.rule), 0, code.value, code.limit};
}

void FillNames(wm_api_v1& api) {
  api.status_name = &StatusName;
  api.reason_name = &ReasonText;
  api.provenance_name = &ProvenanceText;
  api.describe_code = &DescribeCode;
}

}  // namespace waymark::abi
