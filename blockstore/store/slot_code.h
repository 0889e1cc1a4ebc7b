// EncodeSlots: validates the rows of a step and writes their slots for a record of the log.
//
// Pure functions: any thread, no allocation, nothing throws. What is written is read by the same
// process only: it has the processor's byte order, and may change.
//
// A *code* is a slot, NotAsked of a slot, or kPaddingSlot: an int32, or an int64 in a store of wide
// slots, which has 2^31 slots or more. 16 rows are a *tile*. Of a tile whose codes ascend by 1, as
// a prompt's do, only the first is written; of pairs, if it is in one block.
//
//   header   8 bytes: number of rows, bytes of a code (uint32 each)
//   flags    one byte per whole tile: 1: its codes ascend
//   codes    of each tile 1 or 16, then of the rows behind the last whole tile
#ifndef WAYMARK_BLOCKSTORE_STORE_SLOT_CODE_H_
#define WAYMARK_BLOCKSTORE_STORE_SLOT_CODE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/events.h"
#include "blockstore/step_code.h"

namespace waymark {

// The options of the store that rows are validated against. See StoreOptions.
struct SlotLimits {
  std::int32_t num_blocks = 0;    // >= 1
  std::int32_t block_tokens = 0;  // >= 1
  std::uint32_t max_step_rows = 0;

  [[nodiscard]] std::int64_t num_slots() const { return std::int64_t{num_blocks} * block_tokens; }
  // Whether codes are int64. Otherwise every slot and NotAsked(slot) is an int32.
  [[nodiscard]] bool wide() const { return num_slots() > INT32_MAX; }
};

// The most bytes that EncodeSlots writes for `rows` rows. For `batch` with limits.max_step_rows or
// fewer rows, `rows` is NumRows(batch).
[[nodiscard]] std::size_t MaxEncodedBytes(std::size_t rows, const SlotLimits& limits);

// Validates the rows of `batch`, in whichever form they are given, and encodes them to `out`, which
// has room for MaxEncodedBytes(min(NumRows(batch), limits.max_step_rows), limits) bytes and may be
// unaligned. `*bytes` is the number of bytes written. Events, step and version are not looked at.
//
// InvalidArgument with the first of these rules that is broken, and with the first row or request
// that breaks it; `out` is then unspecified and `*bytes` unchanged:
//   slots:  kRowForms, kTooManyRows, kSlotOutOfRange
//   pairs:  kRowForms, kIndexBytes, kBlockTokens, kTooManyRows, then kRowBlock or kRowOffset
[[nodiscard]] StepCode EncodeSlots(const StepBatch& batch, const SlotLimits& limits,
                                   std::uint8_t* out, std::size_t* bytes);

// Of `bytes` that one EncodeSlots wrote, which may be unaligned: the number of rows, and the slot
// of each of them.
[[nodiscard]] std::size_t NumEncodedRows(std::span<const std::uint8_t> bytes);
void DecodeSlots(std::span<const std::uint8_t> bytes, std::int64_t* slots);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_SLOT_CODE_H_
