// StepCode: the result of a call on the engine's step path. Plain data: making one allocates
// nothing and throws nothing.
#ifndef WAYMARK_BLOCKSTORE_STEP_CODE_H_
#define WAYMARK_BLOCKSTORE_STEP_CODE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace waymark {

// The rule that a call on the step path broke. Each comment gives the meaning of StepCode::index
// and StepCode::value.
enum class StepRule : std::uint8_t {
  kNone = 0,
  kStepNotIncreasing,  // value: the step; index: the last one; steps are below 2^56
  kTooManyRows,        // value: the number of rows
  kUnknownEvent,       // index: the event; value: its type
  kBlockOutOfRange,    // index: the event; value: the block
  kSrcOutOfRange,      // index: the event; value: its `src`
  kKeyTooLong,         // index: the event; value: key_size
  kRowsOutOfRange,     // index: the event; value: rows
  kSelfCopy,           // index: the event; value: the block
  kDuplicateMove,      // index: the event; value: the block that is twice in one simultaneous move
  kSealStep,           // index: the event; value: the seal's step, which is later than this step
  kSlotOutOfRange,     // index: the row; value: the slot
  kStepNotInFlight = 13,  // value: the step, which was never begun or has ended
  kRingFull,              // value: steps in flight
  kScheduleAhead,         // value: the step of the open schedule, which is later than this step
  kLogFull,               // value: calls refused so far, because the log was full
  kBusy,                  // another thread is in a call of the engine's thread
  kRowForms,              // value: in how many forms the rows are given (slots, pairs)
  kIndexBytes,            // value: PairRows::index_bytes or position_bytes
  kBlockTokens,           // value: block_tokens of the pairs
  kRowBlock,              // index: the row; value: its block
  kRowOffset,             // index: the row; value: its offset in the block
  kUnfinishedMove,        // index: the event; value: `more`; the next event is not a Move
  kForked,                // the store belongs to the parent of this process
  kStepJump,  // value: the step; index: the last step begun, which it is more than 2^27 above
  kRankRows,  // value: the rows, which are no multiple of the ranks; index: the number of ranks
  // Of the ids of a step, which a capture session takes.
  kIdsRows = 32,  // value: rows of the tensor; index: the most that it may have
  kIdsData,       // value: the rows of the tensor, whose data is null
  kIdsType,       // value: the IdType, which this call does not take
  kIdsColumns,    // value: columns of the tensor; index: those of the capture, K + extra_columns
  kIdsLayers,     // value: layers of the tensor; index: L
  kIdsLayer,      // value: the layer; index: L
  kIdsExperts,    // value: the IdType; index: E, which is more than it holds (ExpertsHeld)
};

// `code` is an absl::StatusCode. kOk (0): the call succeeded. kResourceExhausted (8), from
// BeginStep and SubmitIds only: the step was dropped at once (its rows are missing, reason
// capacity); do not end it with Submit, Drop or Cancel. Any other code: the call changed nothing.
struct StepCode {
  std::int32_t code = 0;
  StepRule rule = StepRule::kNone;
  std::uint64_t index = 0;  // the event, row or limit, if the rule names one
  std::int64_t value = 0;   // the offending value

  [[nodiscard]] bool ok() const { return code == 0; }
  // Whether the step was dropped because there was no room for it.
  [[nodiscard]] bool dropped() const {
    return code == static_cast<std::int32_t>(absl::StatusCode::kResourceExhausted);
  }
  // As a status, whose message names the argument, the rule and the value. `events`: what it calls
  // the array that an event is in. Allocates.
  [[nodiscard]] absl::Status ToStatus(const char* events = "batch.events") const;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STEP_CODE_H_
