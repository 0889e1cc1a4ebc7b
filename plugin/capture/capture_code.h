// CaptureCode: what handing ids to a capture session answers. Plain data, no allocation, no throw.
//
// Begin, submit, drop and cancel answer with the store's StepCode; the calls that take a tensor can
// break more rules, and answer with this.
#ifndef WAYMARK_PLUGIN_CAPTURE_CAPTURE_CODE_H_
#define WAYMARK_PLUGIN_CAPTURE_CAPTURE_CODE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/routing.h"

namespace waymark {

// Which rule was broken.
enum class CaptureRule : std::uint8_t {
  kNone = 0,
  kStepNotInFlight,     // value: a step that was never begun here, or has ended
  kLayerOutOfRange,     // value: the layer given; limit: layers captured
  kLayerNotHandedOver,  // value: a layer that is not bound as LayerSource::kHandsOver
  kNullData,            // value: the rows that a tensor without data claims to have
  kIdType,              // value: the type; layer hand-over takes int16, int32, int64
  kTooManyRows,         // value: rows of the tensor; limit: rows of the view
  kTooFewColumns,       // value: columns of the tensor; limit: K
  kWrongLayers,         // value: layers of the tensor; limit: L
  kRingFull,            // value: sources in flight
  kTransport,           // the transport has failed; CaptureSession::status() says how
  kLayerNotRouted,      // value: a layer that is not bound as LayerSource::kRoutingKernel
  kRouting,             // `routing` has the argument of a routing call, its rule and the value
};

// The answer. `code` has absl's numbers; kOk (0): done. Any other code: nothing was copied or
// landed.
struct CaptureCode {
  std::int32_t code = 0;
  CaptureRule rule = CaptureRule::kNone;
  std::int64_t value = 0;             // the offending value
  std::int64_t limit = 0;             // what it was held against, where the rule says so
  kernels::RoutingCode routing = {};  // of kRouting

  [[nodiscard]] bool ok() const { return code == 0; }
  // The same as a status whose message names the argument, the rule and the value. Allocates.
  [[nodiscard]] absl::Status ToStatus() const;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_CAPTURE_CODE_H_
