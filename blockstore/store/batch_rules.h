// The rules for the events and the rows of a batch that need no state, and what records of the log
// hold of both. Internal to blockstore.
//
// Functions without state: any thread. Nothing throws, unless said.
#ifndef WAYMARK_BLOCKSTORE_STORE_BATCH_RULES_H_
#define WAYMARK_BLOCKSTORE_STORE_BATCH_RULES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/step_code.h"

namespace waymark {

// ---- events

// What events are validated against.
struct EventLimits {
  std::int32_t num_blocks = 0;    // StoreOptions
  std::int32_t block_tokens = 0;  // StoreOptions
  std::uint64_t last_seal = 0;    // the latest step that a Seal may name
};

// The first rule that `events` break, in their order, with the event's index and the value; or ok.
// Of a group of Moves: after the rules of each Move, those of the group (kUnfinishedMove,
// kDuplicateMove: with the index of its first Move). Fields that an event's kind does not have are
// not looked at. `scratch` is used behind its end and left as it was. `out`: if not null, gets a
// copy of the events, as they were checked; on an error it is unspecified. Code: InvalidArgument.
// O(n), for groups of Moves O(n log n). Throws bad_alloc where `scratch` must grow.
[[nodiscard]] StepCode CheckEvents(std::span<const Event> events, EventLimits limits,
                                   std::vector<BlockId>& scratch, Event* out = nullptr);

// The most events of a piece, but for those of a group of Moves.
inline constexpr std::size_t kEventsOfPiece = 128;

// Calls visit(piece) with some events at a time, in their order; a group of Moves is in one piece.
template <class Visit>
void ForEachPiece(std::span<const Event> events, const Visit& visit) {
  while (!events.empty()) {
    std::size_t size = 0;
    while (size < std::min(events.size(), kEventsOfPiece))
      size += GroupSize(events.subspan(size));
    visit(events.first(size));
    events = events.subspan(size);
  }
}

// ---- rows

// The options of the store that rows are validated against. See StoreOptions.
struct SlotLimits {
  std::int32_t num_blocks = 0;    // >= 1
  std::int32_t block_tokens = 0;  // >= 1
  std::uint32_t max_step_rows = 0;

  [[nodiscard]] std::int64_t num_slots() const { return std::int64_t{num_blocks} * block_tokens; }
  // Bytes of an encoded slot.
  [[nodiscard]] std::uint32_t slot_bytes() const { return num_slots() > INT32_MAX ? 8 : 4; }
};

// Validates the rows of `batch`, in whichever form they are given, and writes the slot of each to
// `out`, which has room for min(NumRows(batch), limits.max_step_rows) of them and may be unaligned.
// Events, step and version are not looked at.
//
// InvalidArgument with the first of these rules that is broken, and with the first row that breaks
// it; `out` is then unspecified:
//   slots:  kRowForms, kTooManyRows, kSlotOutOfRange
//   pairs:  kRowForms, kIndexBytes, kBlockTokens, kTooManyRows, then kRowBlock or kRowOffset
[[nodiscard]] StepCode EncodeSlots(const StepBatch& batch, const SlotLimits& limits,
                                   std::uint8_t* out);

// Reads `rows` slots of slot_bytes() each, which may be unaligned.
void DecodeSlots(const std::uint8_t* encoded, std::size_t rows, std::uint32_t slot_bytes,
                 std::int64_t* slots);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_BATCH_RULES_H_
