#include "plugin/capture/capture_code.h"

#include <string>

namespace waymark {

absl::Status CaptureCode::ToStatus() const {
  const auto status = [this](const std::string& message) {
    return absl::Status(static_cast<absl::StatusCode>(code), message);
  };
  const std::string given = std::to_string(value);
  const std::string held_against = std::to_string(limit);
  switch (rule) {
    case CaptureRule::kNone:
      return status(ok() ? "" : "code " + std::to_string(code));
    case CaptureRule::kStepNotInFlight:
      return status("step: must have been begun and not ended; it is " + given);
    case CaptureRule::kLayerOutOfRange:
      return status("layer: must be in [0, " + held_against + "); it is " + given);
    case CaptureRule::kLayerNotHandedOver:
      return status("layer: must not be bound otherwise than as \"hands over\"; layer " + given +
                    " is");
    case CaptureRule::kNullData:
      return status("ids.data: must not be null with rows; ids.rows is " + given);
    case CaptureRule::kIdType:
      return status("ids.type: must be a type this call takes; it is " + given);
    case CaptureRule::kTooManyRows:
      return status("ids.rows: must be in [0, " + held_against + "]; it is " + given);
    case CaptureRule::kTooFewColumns:
      return status("ids.columns: must be at least " + held_against + "; it is " + given);
    case CaptureRule::kWrongLayers:
      return status("ids.layers: must be " + held_against + "; it is " + given);
    case CaptureRule::kRingFull:
      return status("the step was dropped: no entry is free; steps of SubmitIds in flight: " +
                    given);
    case CaptureRule::kTransport:
      return status("the transport has failed; CaptureSession::status() says how");
  }
  return status("unknown rule");
}

}  // namespace waymark
