// CaptureCode: the return value of the CaptureSession calls that take a tensor of ids. Plain data:
// making one does not allocate or throw.
//
// BeginStep, Submit, Drop and Cancel return the store's StepCode (blockstore/step_code.h). The
// calls that take a tensor can break more rules, so they return this.
#ifndef WAYMARK_PLUGIN_CAPTURE_CAPTURE_CODE_H_
#define WAYMARK_PLUGIN_CAPTURE_CAPTURE_CODE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace waymark {

// The rule that a call broke. Each comment gives the meaning of CaptureCode::value and limit; limit
// is 0 where none is named.
enum class CaptureRule : std::uint8_t {
  kNone = 0,
  kStepNotInFlight,     // value: the step, which was never begun here or has ended
  kLayerOutOfRange,     // value: the layer; limit: L
  kLayerNotHandedOver,  // value: the layer, which is bound otherwise than as kHandsOver
  kNullData,            // value: the rows of the tensor, whose data is null
  kIdType,              // value: the IdType; HandOver takes int16, int32 and int64
  kTooManyRows,         // value: rows of the tensor; limit: the most that it may have
  kTooFewColumns,       // value: columns of the tensor; limit: K
  kWrongLayers,         // value: layers of the tensor; limit: L
  kRingFull,            // the step was dropped; value: steps of SubmitIds in flight
  kTransport,           // the transport has failed: CaptureSession::status() returns why
};

// `code` is an absl::StatusCode. 0 (kOk): the call succeeded. kResourceExhausted: the step was
// dropped and has ended. Any other code: nothing was copied, and no step has ended.
struct CaptureCode {
  std::int32_t code = 0;
  CaptureRule rule = CaptureRule::kNone;
  std::int64_t value = 0;  // the offending value
  std::int64_t limit = 0;  // the bound that it broke

  [[nodiscard]] bool ok() const { return code == 0; }
  [[nodiscard]] bool dropped() const {
    return code == static_cast<std::int32_t>(absl::StatusCode::kResourceExhausted);
  }
  // This code as a status, whose message names the argument, the rule and the value. Allocates.
  [[nodiscard]] absl::Status ToStatus() const;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_CAPTURE_CODE_H_
