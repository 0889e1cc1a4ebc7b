#include "blockstore/store/event_check.h"

#include <algorithm>

#include "absl/status/status.h"

namespace waymark {
namespace {

constexpr std::int32_t kInvalidEvent =
    static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument);

}  // namespace

EventCheck::EventCheck(std::int32_t num_blocks, std::int32_t block_tokens)
    : num_blocks_(num_blocks), block_tokens_(block_tokens) {
  move_blocks_.reserve(1024);
}

StepCode EventCheck::Events(std::span<const Event> events, std::uint64_t last, std::uint64_t own) {
  for (std::size_t i = 0; i < events.size(); ++i) {
    const StepCode code = OneEvent(events[i], i, last, own);
    if (!code.ok()) return code;
  }
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].type != EventType::kMove || events[i].more == 0) continue;
    const std::size_t group = GroupSize(events.subspan(i));
    StepCode code = Moves(events.subspan(i, group));
    code.index = i;
    if (!code.ok()) return code;
    i += group - 1;
  }
  return {};
}

StepCode EventCheck::OneEvent(const Event& event, std::uint64_t index, std::uint64_t last,
                              std::uint64_t own) const {
  const auto broken = [&](StepRule rule, std::int64_t value) {
    return StepCode{kInvalidEvent, rule, index, value};
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
  if (event.type == EventType::kSeal && event.step > std::max(last, own)) {
    return broken(StepRule::kSealStep, static_cast<std::int64_t>(event.step));
  }
  return {};
}

// A simultaneous move must not name a block twice as `src`, or twice as `block`.
StepCode EventCheck::Moves(std::span<const Event> events) {
  for (const bool from_side : {true, false}) {
    move_blocks_.clear();
    for (const Event& event : events) {
      const std::int32_t block = from_side ? event.src : event.block;
      if (block >= 0) move_blocks_.push_back(block);
    }
    std::sort(move_blocks_.begin(), move_blocks_.end());
    const auto twice = std::adjacent_find(move_blocks_.begin(), move_blocks_.end());
    if (twice != move_blocks_.end()) return {kInvalidEvent, StepRule::kDuplicateMove, 0, *twice};
  }
  return {};
}

}  // namespace waymark
