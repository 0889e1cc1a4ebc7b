#include "blockstore/step_code.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace waymark {
namespace {

std::string Message(const StepCode& code) {
  const auto event = [&code](const char* field, const char* rule) {
    return absl::StrCat("batch.events[", code.index, "].", field, " must be ", rule, "; it is ",
                        code.value);
  };
  const auto unsigned_value = static_cast<std::uint64_t>(code.value);
  switch (code.rule) {
    case StepRule::kNone:
      break;
    case StepRule::kStepNotIncreasing:
      return absl::StrCat(
          "batch.step must be greater than every step begun before, and below 2^64 - 1; it is ",
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
      return event("block", "named once as src and once as destination of its move");
    case StepRule::kSealStep:
      return absl::StrCat(
          "batch.events[", code.index,
          "].step of a Seal must be 0 or not later than the step of the batch or schedule; it is ",
          unsigned_value);
    case StepRule::kSlotOutOfRange:
      return absl::StrCat("batch.slots[", code.index,
                          "] must be -1, or a slot (or -2 - slot) of a block in [0, num_blocks); "
                          "it is ",
                          code.value);
    case StepRule::kDeviceSlots:
      return absl::StrCat(
          "device slots must come with a step that was begun with them, in a store that was made "
          "for them (StoreOptions::device_slots), and with no other; the call has ",
          unsigned_value, " rows");
    case StepRule::kStepNotInFlight:
      return absl::StrCat("step must have been begun and not have ended; it is ", unsigned_value);
    case StepRule::kRingFull:
      return absl::StrCat(
          "step dropped: steps in flight must be fewer than max_steps_in_flight; "
          "there are ",
          unsigned_value);
    case StepRule::kStampsWrap:
      return absl::StrCat(
          "step dropped: the stamps wrap, and no step may be in flight when they "
          "do; steps in flight: ",
          unsigned_value);
    case StepRule::kScheduleAhead:
      return absl::StrCat("step must not be less than that of the open schedule, which is ",
                          unsigned_value);
  }
  return absl::StrCat("rule ", static_cast<int>(code.rule), " broken at index ", code.index,
                      "; the value is ", code.value);
}

}  // namespace

absl::Status StepCode::ToStatus() const {
  if (ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code), Message(*this));
}

}  // namespace waymark
