#include "blockstore/step_code.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace waymark {
namespace {

std::string Message(const StepCode& code, const char* events) {
  const auto event = [&](const char* field, const char* rule) {
    return absl::StrCat(events, "[", code.index, "].", field, " must be ", rule, "; it is ",
                        code.value);
  };
  const auto unsigned_value = static_cast<std::uint64_t>(code.value);
  switch (code.rule) {
    case StepRule::kNone:
      break;
    case StepRule::kStepNotIncreasing:
      return absl::StrCat(
          "batch.step must be greater than every step begun before, and below 2^56; it is ",
          unsigned_value);
    case StepRule::kTooManyRows:
      return absl::StrCat("batch.num_slots must be at most max_step_rows; it is ", unsigned_value);
    case StepRule::kUnknownEvent:
      return event("type", "the number of an event, in [1, 8]");
    case StepRule::kBlockOutOfRange:
      return event("block", "negative (null) or less than num_blocks");
    case StepRule::kSrcOutOfRange:
      return event("src", "negative (null) or less than num_blocks");
    case StepRule::kKeyTooLong:
      return event("key_size", "at most 32");
    case StepRule::kRowsOutOfRange:
      return event("rows", "in [0, block_tokens] (Copy: or kAllRows)");
    case StepRule::kSelfCopy:
      return event("src", "another block than the destination");
    case StepRule::kDuplicateMove:
      return absl::StrCat(events, "[", code.index,
                          "]: no block may be twice the source, or twice the destination, of the "
                          "Moves of a group; block ",
                          code.value, " is");
    case StepRule::kSealStep:
      return absl::StrCat(
          events, "[", code.index,
          "].step of a Seal must be 0 (the step that is begun next), or not be later "
          "than that step; it is ",
          unsigned_value);
    case StepRule::kSlotOutOfRange:
      return absl::StrCat("batch.slots[", code.index,
                          "] must be -1, or a slot (or -2 - slot) of a block in [0, num_blocks); "
                          "it is ",
                          code.value);
    case StepRule::kDeviceSlots:
      return absl::StrCat(
          "device slots must come with a step that was begun with them, in a store that was made "
          "for them (StoreOptions::device_slots), without derived events, and with no other; the "
          "call has ",
          unsigned_value, " rows");
    case StepRule::kStepNotInFlight:
      return absl::StrCat("step must have been begun and not have ended; it is ", unsigned_value);
    case StepRule::kRingFull:
      return absl::StrCat(
          "step dropped: steps in flight must be fewer than max_steps_in_flight; "
          "there are ",
          unsigned_value);
    case StepRule::kScheduleAhead:
      return absl::StrCat(
          "batch.step must not be earlier than the open schedule, which is of step ",
          unsigned_value);
    case StepRule::kLogFull:
      return absl::StrCat(
          "the log is full, because its records are not applied, or there was no memory to check "
          "the events: the store will lose its rows (capacity); calls refused so far: ",
          unsigned_value);
    case StepRule::kBusy:
      return "one thread at a time may call the store as the engine's thread; another one does";
    case StepRule::kRowForms:
      return absl::StrCat(
          "batch: its rows must be in one form of slots, pairs and table; they are in ",
          code.value);
    case StepRule::kIndexBytes:
      return absl::StrCat("batch.pairs: index_bytes and position_bytes must be 4 or 8; one is ",
                          code.value);
    case StepRule::kBlockTokens:
      return absl::StrCat(
          "batch: block_tokens of pairs must be the store's or a divisor of it; it is ",
          code.value);
    case StepRule::kRowBlock:
      return absl::StrCat("batch: the block of row ", code.index,
                          " must be negative (padding) or less than num_blocks; it is ",
                          code.value);
    case StepRule::kRowOffset:
      return absl::StrCat("batch.pairs.local_position[", code.index,
                          "] must be in [0, block_tokens); it is ", code.value);
    case StepRule::kUnfinishedMove:
      return event("more", "0 in the last Move of a group, which is reported as a whole");
    case StepRule::kForked:
      return "a store must be used in the process that created it; this is a forked child";
    case StepRule::kStepJump:
      return absl::StrCat("batch.step must be at most 134217728 (2^27) above the last step begun, ",
                          code.index, "; it is ", unsigned_value);
    case StepRule::kRankRows:
      return absl::StrCat("batch: its rows, padding included, must be a multiple of the ",
                          code.index, " ranks; they are ", code.value);
    case StepRule::kDerivedEvents:
      return absl::StrCat("batch: derived events need blocks of 2 tokens or more; block_tokens is ",
                          code.value);
  }
  return absl::StrCat("rule ", static_cast<int>(code.rule), " broken at index ", code.index,
                      "; the value is ", code.value);
}

}  // namespace

absl::Status StepCode::ToStatus(const char* events) const {
  if (ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code), Message(*this, events));
}

}  // namespace waymark
