#include "blockstore/store/batch_rules.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "blockstore/step_path.h"

namespace waymark {
namespace {

StepCode Broken(StepRule rule, std::size_t index, std::int64_t value) {
  return {static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument), rule, index, value};
}

// ---- events

bool BlockFits(std::int32_t block, const EventLimits& limits) {
  return block < limits.num_blocks;
}

bool KeyFits(const Event& event) {
  return event.key_size <= BlockKey::kMaxBytes;
}

bool SealFits(const Event& event, const EventLimits& limits) {
  return (event.type != EventType::kSeal) | (event.step <= limits.last_seal);
}

// The rules of one event.
StepCode CheckEvent(const Event& event, const EventLimits& limits) {
  const EventType type = event.type;
  if (type < EventType::kBind || type > EventType::kReset) {
    return Broken(StepRule::kUnknownEvent, 0, static_cast<std::int64_t>(type));
  }
  if (type == EventType::kReset) return {};
  if (!BlockFits(event.block, limits)) return Broken(StepRule::kBlockOutOfRange, 0, event.block);
  if (!KeyFits(event)) return Broken(StepRule::kKeyTooLong, 0, event.key_size);
  const bool copy = type == EventType::kCopy;
  if ((copy || type == EventType::kMove) && !BlockFits(event.src, limits)) {
    return Broken(StepRule::kSrcOutOfRange, 0, event.src);
  }
  if (copy && event.src == event.block && event.block >= 0) {
    return Broken(StepRule::kSelfCopy, 0, event.block);
  }
  if ((copy && event.rows != Event::kAllRows) || type == EventType::kTruncate) {
    if (event.rows < 0 || event.rows > limits.block_tokens) {
      return Broken(StepRule::kRowsOutOfRange, 0, event.rows);
    }
  }
  if (!SealFits(event, limits)) {
    return Broken(StepRule::kSealStep, 0, static_cast<std::int64_t>(event.step));
  }
  return {};
}

// The rules of a group of Moves: its last one is not joined with another event; no block is twice
// the source, or twice the destination.
StepCode CheckMoves(std::span<const Event> moves, std::vector<BlockId>& scratch) {
  StepCode code;
  if (moves.back().more != 0) {
    code = Broken(StepRule::kUnfinishedMove, moves.size() - 1, moves.back().more);
  }
  if (!code.ok() || moves.size() == 1) return code;
  const auto old_size = static_cast<std::ptrdiff_t>(scratch.size());
  for (const bool sources : {true, false}) {
    for (const Event& move : moves) {
      const std::int32_t block = sources ? move.src : move.block;
      if (block >= 0) scratch.emplace_back(block);
    }
    std::sort(scratch.begin() + old_size, scratch.end());
    const auto twice = std::adjacent_find(scratch.begin() + old_size, scratch.end());
    if (twice != scratch.end() && code.ok()) {
      code = Broken(StepRule::kDuplicateMove, 0, twice->value());
    }
    scratch.resize(static_cast<std::size_t>(old_size));
  }
  return code;
}

// The rules of the first `*count` events, which take effect at once.
StepCode CheckFront(std::span<const Event> events, const EventLimits& limits,
                    std::vector<BlockId>& scratch, std::size_t* count) {
  *count = GroupSize(events);
  for (std::size_t i = 0; i < *count; ++i) {
    StepCode code = CheckEvent(events[i], limits);
    code.index = i;
    if (!code.ok()) return code;
  }
  if (events[0].type != EventType::kMove) return {};
  return CheckMoves(events.first(*count), scratch);
}

// ---- rows

// Element i of the array of T at `array`, which may be unaligned.
template <class T>
T LoadAt(const void* array, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::uint8_t*>(array) + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void StoreAt(std::uint8_t* array, std::size_t i, T value) {
  std::memcpy(array + i * sizeof(T), &value, sizeof(T));
}

// Writes slot_of(row, bits) of each row. False: one has left the sign bit in the bits, as a row
// that is out of range does. Rows are in groups of a fixed size, which are made vectors.
template <class T, class SlotOf>
[[gnu::always_inline]] inline bool WriteEach(std::size_t rows, const SlotOf& slot_of,
                                             std::uint8_t* out) {
  constexpr std::size_t kGroup = 16;
  std::uint64_t outside = 0;
  std::size_t row = 0;
  for (; row + kGroup <= rows; row += kGroup) {
    T slots[kGroup];
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < kGroup; ++i)
      slots[i] = static_cast<T>(slot_of(row + i, &bits));
    outside |= bits;
    std::memcpy(out + row * sizeof(T), slots, sizeof(slots));
  }
  for (; row < rows; ++row)
    StoreAt(out, row, static_cast<T>(slot_of(row, &outside)));
  return static_cast<std::int64_t>(outside) >= 0;
}

// Adds and subtracts only, which every processor does in vectors.
template <class T>
WAYMARK_STEP_PATH [[gnu::noinline]] StepCode WriteSlots(const StepBatch& batch,
                                                        std::int64_t num_slots, std::uint8_t* out) {
  const auto slot_of = [&batch, count = static_cast<std::uint64_t>(num_slots)](
                           std::size_t row, std::uint64_t* bits) {
    const auto slot = LoadAt<std::uint64_t>(batch.slots, row);
    *bits |= (count - 1 - slot) | (slot + 1 + count);
    return slot;
  };
  if (WriteEach<T>(batch.num_slots, slot_of, out)) return {};
  for (std::size_t i = 0;; ++i) {
    const auto slot = LoadAt<std::int64_t>(batch.slots, i);
    if (slot >= num_slots || slot < -1 - num_slots) {
      return Broken(StepRule::kSlotOutOfRange, i, slot);
    }
  }
}

template <class T, class Block, class Position>
WAYMARK_STEP_PATH [[gnu::noinline]] StepCode WritePairs(const PairRows& pairs,
                                                        std::int64_t num_blocks,
                                                        std::uint8_t* out) {
  const auto slot_of = [&pairs, count = static_cast<std::uint64_t>(num_blocks),
                        tokens = static_cast<std::uint64_t>(pairs.block_tokens)](
                           std::size_t row, std::uint64_t* bits) {
    const std::int64_t signed_block = LoadAt<Block>(pairs.block_idx, row);
    const std::int64_t signed_offset = LoadAt<Position>(pairs.local_position, row);
    const auto block = static_cast<std::uint64_t>(signed_block);
    const auto offset = static_cast<std::uint64_t>(signed_offset);
    const std::uint64_t padding = std::uint64_t{0} - (block >> 63);
    *bits |= ~padding & ((count - 1 - block) | offset | (tokens - 1 - offset));
    return (block * tokens + offset) | padding;
  };
  if (!WriteEach<T>(pairs.num_rows, slot_of, out)) {
    for (std::size_t i = 0;; ++i) {
      const std::int64_t block = LoadAt<Block>(pairs.block_idx, i);
      const std::int64_t offset = LoadAt<Position>(pairs.local_position, i);
      if (block < 0) continue;
      if (block >= num_blocks) return Broken(StepRule::kRowBlock, i, block);
      if (offset < 0 || offset >= pairs.block_tokens) {
        return Broken(StepRule::kRowOffset, i, offset);
      }
    }
  }
  for (std::size_t i = 0; pairs.asked != nullptr && i < pairs.num_rows; ++i) {
    const T slot = LoadAt<T>(out, i);
    if (pairs.asked[i] == 0 && slot != kPaddingSlot)
      StoreAt(out, i, static_cast<T>(NotAsked(slot)));
  }
  return {};
}

template <class T>
WAYMARK_STEP_PATH StepCode Encode(const StepBatch& batch, const SlotLimits& limits,
                                  std::uint8_t* out) {
  const PairRows* const pairs = batch.pairs;
  if (pairs != nullptr) {
    if (batch.num_slots > 0) return Broken(StepRule::kRowForms, 0, 2);
    for (const std::int32_t width : {pairs->index_bytes, pairs->BytesOfPosition()}) {
      if (width != 4 && width != 8) return Broken(StepRule::kIndexBytes, 0, width);
    }
    if (pairs->block_tokens <= 0 || limits.block_tokens % pairs->block_tokens != 0) {
      return Broken(StepRule::kBlockTokens, 0, pairs->block_tokens);
    }
  }
  if (const std::size_t rows = NumRows(batch); rows > limits.max_step_rows) {
    return Broken(StepRule::kTooManyRows, 0, static_cast<std::int64_t>(rows));
  }
  if (pairs == nullptr) return WriteSlots<T>(batch, limits.num_slots(), out);
  const std::int64_t blocks = limits.num_slots() / pairs->block_tokens;
  const bool narrow = pairs->BytesOfPosition() == sizeof(std::int32_t);
  if (pairs->index_bytes == sizeof(std::int32_t)) {
    return narrow ? WritePairs<T, std::int32_t, std::int32_t>(*pairs, blocks, out)
                  : WritePairs<T, std::int32_t, std::int64_t>(*pairs, blocks, out);
  }
  return narrow ? WritePairs<T, std::int64_t, std::int32_t>(*pairs, blocks, out)
                : WritePairs<T, std::int64_t, std::int64_t>(*pairs, blocks, out);
}

}  // namespace

// Binds, Retains, Releases and Seals are nearly all events. Among them there is no branch, since
// their order cannot be predicted. `limits` is a copy, which stays in registers: what is written to
// `out` could change anything that a reference refers to.
WAYMARK_STEP_PATH StepCode CheckEvents(std::span<const Event> events, const EventLimits limits,
                                       std::vector<BlockId>& scratch, Event* out) {
  for (std::size_t i = 0; i < events.size();) {
    const Event& event = events[i];
    const bool is_common = (event.type >= EventType::kBind) & (event.type <= EventType::kSeal);
    const bool block_fits = BlockFits(event.block, limits);
    const bool key_fits = KeyFits(event);
    const bool seal_fits = SealFits(event, limits);
    std::size_t count = 1;
    if (!(is_common & block_fits & key_fits & seal_fits)) [[unlikely]] {
      StepCode code = CheckFront(events.subspan(i), limits, scratch, &count);
      code.index += i;
      if (!code.ok()) return code;
    }
    for (const std::size_t end = i + count; i < end; ++i)
      if (out != nullptr) out[i] = events[i];
  }
  return {};
}

WAYMARK_STEP_PATH StepCode EncodeSlots(const StepBatch& batch, const SlotLimits& limits,
                                       std::uint8_t* out) {
  return limits.slot_bytes() == sizeof(std::int32_t) ? Encode<std::int32_t>(batch, limits, out)
                                                     : Encode<std::int64_t>(batch, limits, out);
}

void DecodeSlots(const std::uint8_t* encoded, std::size_t rows, std::uint32_t slot_bytes,
                 std::int64_t* slots) {
  for (std::size_t i = 0; i < rows; ++i) {
    slots[i] = slot_bytes == sizeof(std::int32_t) ? LoadAt<std::int32_t>(encoded, i)
                                                  : LoadAt<std::int64_t>(encoded, i);
  }
}

}  // namespace waymark
