#include "blockstore/step_code.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "blockstore/rows.h"

namespace waymark {
namespace {

struct Text {
  StepRule rule;
  // What is broken: $a is the array of the events, $i StepCode::index, $v the value, $u the value
  // without a sign.
  const char* text;
};

constexpr Text kTexts[] = {
    {StepRule::kStepNotIncreasing,
     "step must be greater than every step begun before, and below 2^56; the last one was $i; it "
     "is $u"},
    {StepRule::kTooManyRows, "num_slots must be at most max_step_rows; it is $u"},
    {StepRule::kUnknownEvent, "$a[$i].type must be the number of an event, in [1, 8]; it is $v"},
    {StepRule::kBlockOutOfRange,
     "$a[$i].block must be negative (null) or less than num_blocks; it is $v"},
    {StepRule::kSrcOutOfRange,
     "$a[$i].src must be negative (null) or less than num_blocks; it is $v"},
    {StepRule::kKeyTooLong, "$a[$i].key_size must be at most 32; it is $v"},
    {StepRule::kRowsOutOfRange,
     "$a[$i].rows must be in [0, block_tokens] (Copy: or kAllRows); it is $v"},
    {StepRule::kSelfCopy, "$a[$i].src must be another block than the destination; it is $v"},
    {StepRule::kDuplicateMove,
     "$a[$i]: no block may be twice the source, or twice the destination, of the Moves of a group; "
     "block $v is"},
    {StepRule::kSealStep,
     "$a[$i].step of a Seal must be 0 (the step that is begun next), or not be later than that "
     "step; it is $u"},
    {StepRule::kSlotOutOfRange,
     "slots[$i] must be -1, or a slot (or -2 - slot) of a block in [0, num_blocks); it is "
     "$v"},
    {StepRule::kStepNotInFlight, "step must have been begun and not have ended; it is $u"},
    {StepRule::kRingFull,
     "step dropped: steps in flight must be fewer than max_steps_in_flight; there are $u"},
    {StepRule::kScheduleAhead,
     "step must not be earlier than the open schedule, which is of step $u"},
    {StepRule::kLogFull,
     "the log is full, because its records are not applied, or there was no memory to check the "
     "events: the store will lose its rows (capacity); calls refused so far: $u"},
    {StepRule::kBusy,
     "one thread at a time may call the store as the engine's thread; another one does"},
    {StepRule::kRowForms, "batch: its rows must be in one form, slots or pairs; they are in $v"},
    {StepRule::kIndexBytes, "pairs: index_bytes and position_bytes must be 4 or 8; one is $v"},
    {StepRule::kBlockTokens,
     "batch: block_tokens of pairs must be the store's or a divisor of it; it is $v"},
    {StepRule::kRowBlock,
     "batch: the block of row $i must be negative (padding) or less than num_blocks; it is $v"},
    {StepRule::kRowOffset,
     "pairs.local_position[$i] must be in [0, block_tokens): positions are within the block; it is "
     "$v"},
    {StepRule::kUnfinishedMove,
     "$a[$i].more must be 0 in the last Move of a group, which is reported as a whole; it is $v"},
    {StepRule::kForked,
     "a store must be used in the process that created it; this is a forked child"},
    {StepRule::kStepJump,
     "step must be at most 134217728 (2^27) above the last step begun, $i; it is $u"},
    {StepRule::kRankRows,
     "batch: its rows, padding included, must be a multiple of the $i ranks; they are $v"},
    {StepRule::kIdsRows,
     "ids.rows (from ids.first_row on, which must be 0 for a whole step): must be in [0, $i]; it "
     "is $v"},
    {StepRule::kIdsData, "ids.data: must not be null with rows; ids.rows is $v"},
    {StepRule::kIdsType, "ids.type: must be a type this call takes; it is $v"},
    {StepRule::kIdsColumns,
     "ids.columns: must be $i, top_k and the extra_columns of the capture; it is $v"},
    {StepRule::kIdsLayers, "ids.layers: must be $i; it is $v"},
    {StepRule::kIdsLayer, "layer: must be in [0, $i); it is $v"},
    {StepRule::kIdsExperts, "ids: $h, the capture has $i"},
};

static_assert(std::size(kTexts) == static_cast<std::size_t>(StepRule::kRankRows) +
                                       static_cast<std::size_t>(StepRule::kIdsExperts) -
                                       static_cast<std::size_t>(StepRule::kIdsRows));

std::string Message(const StepCode& code, const char* events) {
  const auto* const found =
      std::find_if(std::begin(kTexts), std::end(kTexts),
                   [&code](const Text& text) { return text.rule == code.rule; });
  if (found == std::end(kTexts)) {
    return absl::StrCat("rule ", static_cast<int>(code.rule), " broken at index ", code.index,
                        "; the value is ", code.value);
  }
  const auto type = static_cast<IdType>(code.value);  // of kIdsExperts
  return absl::StrReplaceAll(found->text,
                             {{"$a", events},
                              {"$h", ExpertsHeldText(IdBytes(type), type >= IdType::kInt16)},
                              {"$i", absl::StrCat(code.index)},
                              {"$v", absl::StrCat(code.value)},
                              {"$u", absl::StrCat(static_cast<std::uint64_t>(code.value))}});
}

}  // namespace

absl::Status StepCode::ToStatus(const char* events) const {
  if (ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code), Message(*this, events));
}

}  // namespace waymark
