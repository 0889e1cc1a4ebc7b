#include "blockstore/store/slot_code.h"

#include <array>
#include <cstring>

#include "blockstore/step_path.h"

namespace waymark {
namespace {

constexpr std::size_t kTile = 16;
constexpr std::size_t kHeaderBytes = 2 * sizeof(std::uint32_t);

// Element i of the array of T at `array`, which may be unaligned.
template <class T>
T LoadAt(const void* array, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::uint8_t*>(array) + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void StoreAt(void* array, std::size_t i, T value) {
  std::memcpy(static_cast<std::uint8_t*>(array) + i * sizeof(T), &value, sizeof(T));
}

StepCode Refuse(StepRule rule, std::size_t index, std::int64_t value) {
  return {static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument), rule, index, value};
}

// What pairs and tables are validated against.
struct Blocks {
  std::int64_t count = 0;   // as many as the store has, or kernel blocks
  std::int32_t tokens = 0;  // of each
};

// ---- tiles

// Writes the codes of `rows` rows, which fill(first row, rows, codes) gives in their order, of at
// most a tile in each call. True: the codes of the tile ascend, and only the first was given.
// Returns the number of bytes.
template <class T, class Fill>
[[gnu::always_inline]] inline std::size_t WriteTiles(std::size_t rows, const Fill& fill,
                                                     std::uint8_t* out) {
  StoreAt(out, 0, static_cast<std::uint32_t>(rows));
  StoreAt(out, 1, static_cast<std::uint32_t>(sizeof(T)));
  const std::size_t tiles = rows / kTile;
  std::uint8_t* const flags = out + kHeaderBytes;
  std::uint8_t* at = flags + tiles;
  std::array<std::make_unsigned_t<T>, kTile> codes{};
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const bool ascends = fill(tile * kTile, kTile, codes.data());
    flags[tile] = ascends ? 1 : 0;
    if (ascends) {
      StoreAt(at, 0, codes[0]);
      at += sizeof(T);
    } else {
      std::memcpy(at, codes.data(), sizeof(codes));
      at += sizeof(codes);
    }
  }
  const std::size_t rest = rows % kTile;
  if (rest != 0) (void)fill(tiles * kTile, rest, codes.data());
  std::memcpy(at, codes.data(), rest * sizeof(T));
  return static_cast<std::size_t>(at - out) + rest * sizeof(T);
}

// Whether elements [first, first + kTile) are each `by` more than the one before. The two at the
// ends tell it of nearly every tile that does not.
template <class T, unsigned by>
[[gnu::always_inline]] inline bool Ascends(const void* array, std::size_t first) {
  using U = std::make_unsigned_t<T>;
  const auto begin = LoadAt<U>(array, first);
  if (LoadAt<U>(array, first + kTile - 1) - begin != U{kTile - 1} * by) return false;
  U differs = 0;
  constexpr std::size_t kHalf = kTile / 2;
  for (std::size_t i = 0; i < kHalf; ++i) {
    const auto each = LoadAt<U>(array, first + i);
    differs |= (LoadAt<U>(array, first + i + 1) - each - by) |
               (LoadAt<U>(array, first + i + kHalf) - each - kHalf * by);
  }
  return differs == 0;
}

// ---- slots

StepCode BadSlot(const StepBatch& batch, std::int64_t num_slots) {
  for (std::size_t i = 0; i < batch.num_slots; ++i) {
    const auto slot = LoadAt<std::int64_t>(batch.slots, i);
    if (slot >= num_slots || slot < -1 - num_slots) {
      return Refuse(StepRule::kSlotOutOfRange, i, slot);
    }
  }
  return {};
}

// Adds and subtracts only, which every processor does in vectors: a number that is out of range
// leaves the sign bit in `outside`.
template <class T>
WAYMARK_STEP_PATH [[gnu::noinline]] StepCode WriteSlots(const StepBatch& batch,
                                                        const SlotLimits& limits, std::uint8_t* out,
                                                        std::size_t* bytes) {
  using U = std::make_unsigned_t<T>;
  const auto num_slots = static_cast<std::uint64_t>(limits.num_slots());
  std::uint64_t outside = 0;
  const auto code_of = [&](std::size_t row, std::uint64_t* bits) {
    const auto slot = LoadAt<std::uint64_t>(batch.slots, row);
    *bits |= (num_slots - 1 - slot) | (slot + 1 + num_slots);
    return static_cast<U>(slot);
  };
  const auto fill = [&](std::size_t first, std::size_t rows, U* codes) {
    std::uint64_t bits = 0;
    const bool ascends = rows == kTile && Ascends<std::int64_t, 1>(batch.slots, first);
    if (ascends) {
      (void)code_of(first + kTile - 1, &bits);
      codes[0] = code_of(first, &bits);
    } else {
      for (std::size_t i = 0; i < rows; ++i)
        codes[i] = code_of(first + i, &bits);
    }
    outside |= bits;
    return ascends;
  };
  const std::size_t written = WriteTiles<T>(batch.num_slots, fill, out);
  if (static_cast<std::int64_t>(outside) < 0) return BadSlot(batch, limits.num_slots());
  *bytes = written;
  return {};
}

// ---- pairs

template <class Block, class Position>
StepCode BadPair(const PairRows& pairs, const Blocks& blocks) {
  for (std::size_t i = 0; i < pairs.num_rows; ++i) {
    const auto block = LoadAt<Block>(pairs.block_idx, i);
    const auto offset = LoadAt<Position>(pairs.local_position, i);
    if (block < 0) continue;
    if (block >= blocks.count) return Refuse(StepRule::kRowBlock, i, block);
    if (offset < 0 || offset >= blocks.tokens) return Refuse(StepRule::kRowOffset, i, offset);
  }
  return {};
}

// An integer as one of T, if it is one: `high` is then that of its sign, 0 or -1.
template <class T>
struct Halves {
  std::make_unsigned_t<T> low;
  std::make_unsigned_t<T> high;

  template <class Index>
  explicit Halves(Index value)
      : low(static_cast<std::make_unsigned_t<T>>(value)),
        high(static_cast<std::make_unsigned_t<T>>(
            sizeof(T) < sizeof(Index) ? value >> (8 * sizeof(T) % (8 * sizeof(Index)))
                                      : value >> (8 * sizeof(Index) - 1))) {}
};

template <class T, class Block, class Position>
WAYMARK_STEP_PATH [[gnu::noinline]] StepCode WritePairs(const PairRows& pairs, const Blocks& blocks,
                                                        std::uint8_t* out, std::size_t* bytes) {
  using U = std::make_unsigned_t<T>;
  const auto tokens = static_cast<U>(blocks.tokens);
  const auto count = static_cast<U>(blocks.count);
  U outside = 0;
  const auto code_of = [&](std::size_t row, U* bits) {
    const Halves<T> block(LoadAt<Block>(pairs.block_idx, row));
    const Halves<T> offset(LoadAt<Position>(pairs.local_position, row));
    const U padding = U{0} - (block.high >> (8 * sizeof(U) - 1));
    *bits |= ~padding & ((U{0} - block.high) | block.low | (count - 1 - block.low) |
                         (U{0} - offset.high) | offset.low | (tokens - 1 - offset.low));
    return (block.low * tokens + offset.low) | padding;
  };
  const auto fill = [&](std::size_t first, std::size_t rows, U* codes) {
    U bits = 0;
    const bool ascends = rows == kTile && pairs.asked == nullptr &&
                         Ascends<Position, 1>(pairs.local_position, first) &&
                         Ascends<Block, 0>(pairs.block_idx, first);
    if (ascends && LoadAt<Block>(pairs.block_idx, first) >= 0) {
      (void)code_of(first + kTile - 1, &bits);
      codes[0] = code_of(first, &bits);
      outside |= bits;
      return true;
    }
    for (std::size_t i = 0; i < rows; ++i)
      codes[i] = code_of(first + i, &bits);
    outside |= bits;
    for (std::size_t i = 0; pairs.asked != nullptr && i < rows; ++i) {
      if (pairs.asked[first + i] == 0 && codes[i] != ~U{0}) codes[i] = ~U{1} - codes[i];
    }
    return false;
  };
  const std::size_t written = WriteTiles<T>(pairs.num_rows, fill, out);
  if (static_cast<T>(outside) < 0) return BadPair<Block, Position>(pairs, blocks);
  *bytes = written;
  return {};
}

template <class T>
StepCode WritePairs(const PairRows& pairs, const Blocks& blocks, std::uint8_t* out,
                    std::size_t* bytes) {
  const bool narrow = pairs.BytesOfPosition() == sizeof(std::int32_t);
  if (pairs.index_bytes == sizeof(std::int32_t)) {
    return narrow ? WritePairs<T, std::int32_t, std::int32_t>(pairs, blocks, out, bytes)
                  : WritePairs<T, std::int32_t, std::int64_t>(pairs, blocks, out, bytes);
  }
  return narrow ? WritePairs<T, std::int64_t, std::int32_t>(pairs, blocks, out, bytes)
                : WritePairs<T, std::int64_t, std::int64_t>(pairs, blocks, out, bytes);
}

// ---- any form

template <class T>
WAYMARK_STEP_PATH StepCode Encode(const StepBatch& batch, const SlotLimits& limits,
                                  std::uint8_t* out, std::size_t* bytes) {
  const PairRows* const pairs = batch.pairs;
  if (pairs != nullptr && batch.num_slots > 0) return Refuse(StepRule::kRowForms, 0, 2);
  Blocks blocks;
  if (pairs != nullptr) {
    for (const std::int32_t width : {pairs->index_bytes, pairs->BytesOfPosition()}) {
      if (width != 4 && width != 8) return Refuse(StepRule::kIndexBytes, 0, width);
    }
    blocks.tokens = pairs->block_tokens;
    if (blocks.tokens <= 0 || limits.block_tokens % blocks.tokens != 0) {
      return Refuse(StepRule::kBlockTokens, 0, blocks.tokens);
    }
    blocks.count = limits.num_slots() / blocks.tokens;
  }
  if (const std::size_t rows = NumRows(batch); rows > limits.max_step_rows) {
    return Refuse(StepRule::kTooManyRows, 0, static_cast<std::int64_t>(rows));
  }
  return pairs != nullptr ? WritePairs<T>(*pairs, blocks, out, bytes)
                          : WriteSlots<T>(batch, limits, out, bytes);
}

template <class T>
void Decode(std::size_t rows, const std::uint8_t* flags, std::int64_t* slots) {
  const std::size_t tiles = rows / kTile;
  const std::uint8_t* at = flags + tiles;
  for (std::size_t tile = 0; tile < tiles; ++tile, slots += kTile) {
    if (flags[tile] != 0) {
      const std::int64_t first = LoadAt<T>(at, 0);
      for (std::size_t i = 0; i < kTile; ++i)
        slots[i] = first + static_cast<std::int64_t>(i);
      at += sizeof(T);
    } else {
      for (std::size_t i = 0; i < kTile; ++i)
        slots[i] = LoadAt<T>(at, i);
      at += kTile * sizeof(T);
    }
  }
  for (std::size_t i = 0; i < rows % kTile; ++i)
    slots[i] = LoadAt<T>(at, i);
}

}  // namespace

WAYMARK_STEP_PATH std::size_t MaxEncodedBytes(std::size_t rows, const SlotLimits& limits) {
  return kHeaderBytes + rows / kTile +
         rows * (limits.wide() ? sizeof(std::int64_t) : sizeof(std::int32_t));
}

WAYMARK_STEP_PATH StepCode EncodeSlots(const StepBatch& batch, const SlotLimits& limits,
                                       std::uint8_t* out, std::size_t* bytes) {
  return limits.wide() ? Encode<std::int64_t>(batch, limits, out, bytes)
                       : Encode<std::int32_t>(batch, limits, out, bytes);
}

std::size_t NumEncodedRows(std::span<const std::uint8_t> bytes) {
  return LoadAt<std::uint32_t>(bytes.data(), 0);
}

void DecodeSlots(std::span<const std::uint8_t> bytes, std::int64_t* slots) {
  const std::size_t rows = NumEncodedRows(bytes);
  const std::uint8_t* const flags = bytes.data() + kHeaderBytes;
  if (LoadAt<std::uint32_t>(bytes.data(), 1) == sizeof(std::int64_t)) {
    Decode<std::int64_t>(rows, flags, slots);
  } else {
    Decode<std::int32_t>(rows, flags, slots);
  }
}

}  // namespace waymark
