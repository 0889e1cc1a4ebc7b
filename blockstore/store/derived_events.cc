#include "blockstore/store/derived_events.h"

#include <bit>

namespace waymark {
namespace {

// Padding has no slot.
constexpr std::uint64_t kOfPadding = ~std::uint64_t{0};

// Of a row that did not ask, too.
std::uint64_t SlotOf(std::int64_t coded) {
  return static_cast<std::uint64_t>(coded < kPaddingSlot ? NotAsked(coded) : coded);
}
static_assert(static_cast<std::uint64_t>(kPaddingSlot) == kOfPadding);

}  // namespace

DerivedEvents::DerivedEvents(std::int32_t num_blocks, std::int32_t block_tokens,
                             std::size_t max_rows)
    : blocks_{static_cast<std::uint64_t>(block_tokens),
              std::has_single_bit(static_cast<std::uint32_t>(block_tokens))
                  ? std::countr_zero(static_cast<std::uint32_t>(block_tokens))
                  : -1},
      first_alone_(block_tokens < 2 ? 0 : static_cast<std::size_t>(num_blocks)) {
  slots_.reserve(max_rows);
}

void DerivedEvents::Start(std::span<const std::int64_t> slots) {
  const Blocks blocks = blocks_;  // in registers
  slots_.clear();
  next_ = 0;
  bool any = false;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::uint64_t slot = SlotOf(slots[i]);
    const std::uint64_t offset = blocks.OffsetOf(slot);
    if ((offset != 0 && offset != blocks.tokens - 1) || slot == kOfPadding) continue;
    if (offset == 0) {
      // As a rule, the next row of a prompt.
      if (i + 1 < slots.size() && SlotOf(slots[i + 1]) == slot + 1) continue;
      first_alone_[blocks.Of(slot)] = any = true;
    }
    slots_.push_back(slot);
  }
  if (!any) return;
  for (const std::int64_t coded : slots) {
    const std::uint64_t slot = SlotOf(coded);
    if (slot == kOfPadding || !first_alone_[blocks.Of(slot)] || blocks.OffsetOf(slot) == 0)
      continue;
    first_alone_[blocks.Of(slot)] = false;
  }
}

bool DerivedEvents::Next(std::vector<Event>& events) {
  events.clear();
  for (; next_ < slots_.size() && events.size() < kPiece; ++next_) {
    const std::uint64_t slot = slots_[next_], at = blocks_.Of(slot);
    const BlockId block(static_cast<std::int32_t>(at));
    if (blocks_.OffsetOf(slot) != 0) {
      events.push_back(Event::Seal(block, {}));
    } else if (first_alone_[at]) {
      first_alone_[at] = false;
      events.push_back(Event::Bind(block));
    }
  }
  return !events.empty();
}

}  // namespace waymark
