#include "adapters/vllm/decode_events.h"

#include "blockstore/step_path.h"

namespace waymark {

WAYMARK_STEP_PATH std::size_t DecodeEvents(std::span<const std::int64_t> slots,
                                           std::int32_t block_tokens, BlockId null_block,
                                           std::span<Event> events) {
  if (block_tokens < 2) return 0;
  const auto tokens = static_cast<std::uint64_t>(block_tokens);
  const bool power = (tokens & (tokens - 1)) == 0;
  // Of a row that did not ask, too. Padding becomes -1, which is no neighbour of a first row.
  const auto at = [slots](std::size_t i) {
    return static_cast<std::uint64_t>(slots[i] < -1 ? NotAsked(slots[i]) : slots[i]);
  };
  std::size_t count = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::uint64_t slot = at(i);
    // A division for each row would be most of the work.
    const std::uint64_t offset = power ? slot & (tokens - 1) : slot % tokens;
    if ((offset != 0 && offset != tokens - 1) || slots[i] == -1) continue;
    const std::uint64_t index = slot / tokens;
    const BlockId block(static_cast<std::int32_t>(index));
    if (index > std::uint64_t{INT32_MAX} || block == null_block) continue;
    if (offset != 0) {
      events[count++] = Event::Seal(block, {});
    } else if (i + 1 == slots.size() || at(i + 1) != slot + 1) {
      events[count++] = Event::Bind(block);
    }
  }
  return count;
}

}  // namespace waymark
