#include "blockstore/store/batch_check.h"

#include <algorithm>

#include "absl/status/status.h"
#include "blockstore/store/store_core.h"

namespace waymark {
namespace {

constexpr std::int32_t kInvalid = static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument);

}  // namespace

BatchCheck::BatchCheck(const StoreOptions& options)
    : num_blocks_(options.num_blocks),
      block_tokens_(options.block_tokens),
      num_slots_(std::int64_t{options.num_blocks} * options.block_tokens),
      max_step_rows_(options.max_step_rows),
      device_slots_(options.device_slots) {
  move_blocks_.reserve(1024);
}

StepCode BatchCheck::Batch(const StepBatch& batch, std::uint64_t last) {
  if (batch.step <= last || batch.step == StoreCore::kNoStep) {
    return {kInvalid, StepRule::kStepNotIncreasing, 0, static_cast<std::int64_t>(batch.step)};
  }
  if (batch.num_slots > max_step_rows_) {
    return {kInvalid, StepRule::kTooManyRows, 0, static_cast<std::int64_t>(batch.num_slots)};
  }
  if (batch.device_slots && !device_slots_) {
    return {kInvalid, StepRule::kDeviceSlots, 0, static_cast<std::int64_t>(batch.num_slots)};
  }
  const StepCode events = Events(batch.event_span(), batch.step);
  return events.ok() ? Slots(batch.slot_span()) : events;
}

StepCode BatchCheck::Events(std::span<const Event> events, std::uint64_t step) {
  for (std::size_t i = 0; i < events.size(); ++i) {
    const StepCode code = OneEvent(events[i], i, step);
    if (!code.ok()) return code;
    if (events[i].type == EventType::kMove && events[i].more != 0) {
      std::size_t end = i;
      while (end < events.size() && events[end].type == EventType::kMove && events[end].more != 0) {
        ++end;
      }
      if (end < events.size() && events[end].type == EventType::kMove) ++end;
      for (std::size_t j = i; j < end; ++j) {
        const StepCode pair = OneEvent(events[j], j, step);
        if (!pair.ok()) return pair;
      }
      StepCode group = Moves(events.subspan(i, end - i));
      group.index = i;
      if (!group.ok()) return group;
      i = end - 1;
    }
  }
  return {};
}

StepCode BatchCheck::OneEvent(const Event& event, std::uint64_t index, std::uint64_t step) const {
  const auto broken = [&](StepRule rule, std::int64_t value) {
    return StepCode{kInvalid, rule, index, value};
  };
  switch (event.type) {
    case EventType::kReset:
      return {};
    case EventType::kBind:
    case EventType::kRetain:
    case EventType::kRelease:
    case EventType::kSeal:
    case EventType::kCopy:
    case EventType::kMove:
    case EventType::kTruncate:
      break;
    default:
      return broken(StepRule::kUnknownEvent, static_cast<std::int64_t>(event.type));
  }
  if (event.block >= num_blocks_) return broken(StepRule::kBlockOutOfRange, event.block);
  if (event.key_size > BlockKey::kMaxBytes) return broken(StepRule::kKeyTooLong, event.key_size);
  if (event.type == EventType::kCopy || event.type == EventType::kMove) {
    if (event.src >= num_blocks_) {
      return broken(StepRule::kSrcOutOfRange, event.src);
    }
    if (event.type == EventType::kCopy && event.src == event.block && event.block >= 0) {
      return broken(StepRule::kSelfCopy, event.block);
    }
  }
  if (event.type == EventType::kCopy && event.rows != Event::kAllRows &&
      (event.rows < 0 || event.rows > block_tokens_)) {
    return broken(StepRule::kRowsOutOfRange, event.rows);
  }
  if (event.type == EventType::kTruncate && (event.rows < 0 || event.rows > block_tokens_)) {
    return broken(StepRule::kRowsOutOfRange, event.rows);
  }
  if (event.type == EventType::kSeal && (event.step == 0 || event.step > step)) {
    return broken(StepRule::kSealStep, static_cast<std::int64_t>(event.step));
  }
  return {};
}

// A simultaneous move must not name a block twice as `src`, or twice as `block`.
StepCode BatchCheck::Moves(std::span<const Event> events) {
  for (const bool from_side : {true, false}) {
    move_blocks_.clear();
    for (const Event& event : events) {
      const std::int32_t block = from_side ? event.src : event.block;
      if (block >= 0) move_blocks_.push_back(block);
    }
    std::sort(move_blocks_.begin(), move_blocks_.end());
    const auto twice = std::adjacent_find(move_blocks_.begin(), move_blocks_.end());
    if (twice != move_blocks_.end()) return {kInvalid, StepRule::kDuplicateMove, 0, *twice};
  }
  return {};
}

StepCode BatchCheck::Slots(std::span<const std::int64_t> slots) const {
  std::uint64_t outside = 0;
  for (const std::int64_t slot : slots) {
    outside |= static_cast<std::uint64_t>(slot >= num_slots_) |
               static_cast<std::uint64_t>(slot < -1 - num_slots_);
  }
  if (outside != 0) {
    const auto bad = std::find_if(slots.begin(), slots.end(), [&](std::int64_t slot) {
      return slot >= num_slots_ || slot < -1 - num_slots_;
    });
    return {kInvalid, StepRule::kSlotOutOfRange, static_cast<std::uint64_t>(bad - slots.begin()),
            *bad};
  }
  return {};
}

}  // namespace waymark
