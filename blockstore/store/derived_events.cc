#include "blockstore/store/derived_events.h"

namespace waymark {
namespace {

// Of a row that did not ask, too. Padding becomes a number that is no neighbour of a first row.
std::uint64_t SlotOf(std::int64_t coded) {
  return static_cast<std::uint64_t>(coded < kPaddingSlot ? NotAsked(coded) : coded);
}

}  // namespace

bool DerivedEvents::Next(std::vector<Event>& events) {
  events.clear();
  const auto tokens = static_cast<std::uint64_t>(block_tokens_);
  if (tokens < 2) return false;
  const bool power = (tokens & (tokens - 1)) == 0;
  while (!rest_.empty() && events.size() < kPiece) {
    const bool padding = rest_[0] == kPaddingSlot;
    const std::uint64_t slot = SlotOf(rest_[0]);
    rest_ = rest_.subspan(1);
    // A division for each row would be most of the work.
    const std::uint64_t offset = power ? slot & (tokens - 1) : slot % tokens;
    if (padding || (offset != 0 && offset != tokens - 1)) continue;
    const BlockId block(static_cast<std::int32_t>(slot / tokens));
    if (offset != 0) {
      events.push_back(Event::Seal(block, {}));
    } else if (rest_.empty() || SlotOf(rest_[0]) != slot + 1) {
      events.push_back(Event::Bind(block));
    }
  }
  return !events.empty();
}

}  // namespace waymark
