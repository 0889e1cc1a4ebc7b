// StepCode: what a call on the engine's step path answers. Plain data, no allocation, no throw.
#ifndef WAYMARK_BLOCKSTORE_STEP_CODE_H_
#define WAYMARK_BLOCKSTORE_STEP_CODE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace waymark {

// Which rule of a step-path call was broken.
enum class StepRule : std::uint8_t {
  kNone = 0,
  kStepNotIncreasing,  // value: the step given; 2^64 - 1 is none, either
  kTooManyRows,        // value: the rows given
  kUnknownEvent,       // index: the event; value: its type
  kBlockOutOfRange,    // index: the event; value: the block
  kSourceOutOfRange,   // index: the event; value: the source block
  kKeyTooLong,         // index: the event; value: key_size
  kRowsOutOfRange,     // index: the event; value: rows
  kSelfCopy,           // index: the event; value: the block
  kDuplicateMove,      // index: the event; value: the block that two pairs of one move name
  kSealStep,           // index: the event; value: a seal's step that is 0 or later than this step
  kSlotOutOfRange,     // index: the row; value: the slot
  kDeviceSlots,  // value: the rows of a call with device slots where they may not be, or without
  kStepNotInFlight,  // value: the step that was never begun, or has ended
  kRingFull,         // value: steps in flight
  kStampsWrap,       // value: steps in flight that a new base waits for
};

// The answer. `code` has absl's numbers. kOk (0): done. kResourceExhausted (8) from BeginStep: the
// step has been dropped here and now (its rows are missing, reason capacity) and needs no Submit,
// drop or Cancel. Any other code: nothing at all was done.
struct StepCode {
  std::int32_t code = 0;
  StepRule rule = StepRule::kNone;
  std::uint64_t index = 0;  // which event or row, where the rule says so
  std::int64_t value = 0;   // the offending value

  [[nodiscard]] bool ok() const { return code == 0; }
  // True when BeginStep dropped the step for want of room.
  [[nodiscard]] bool dropped() const {
    return code == static_cast<std::int32_t>(absl::StatusCode::kResourceExhausted);
  }
  // The same as a status whose message names the argument, the rule and the value. Allocates.
  [[nodiscard]] absl::Status ToStatus() const;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STEP_CODE_H_
