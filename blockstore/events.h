// Events: how an engine reports what happens to its KV blocks; and the batch that begins a step.
//
// Everything here is plain data of C layout. RoutingStore::BeginStep applies a batch;
// docs/internals/architecture.md has the rules. Null blocks (negative, or listed in
// StoreOptions::null_blocks) are allowed in every event. Such an event is ignored and counted; but
// the destination of a Copy or Move *from* a null block becomes never written.
#ifndef WAYMARK_BLOCKSTORE_EVENTS_H_
#define WAYMARK_BLOCKSTORE_EVENTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "blockstore/ids.h"

namespace waymark {

// The engine's prefix-chain hash of a full block: 1 ... 32 bytes. A key of size 0 is empty.
struct BlockKey {
  static constexpr std::size_t kMaxBytes = 32;

  std::array<std::uint8_t, kMaxBytes> bytes{};  // bytes beyond `size` are zero
  std::uint8_t size = 0;

  // The key of the first 32 of `bytes`.
  [[nodiscard]] static BlockKey FromBytes(std::span<const std::uint8_t> bytes);
  // The key of an integer hash: its 8 bytes, little-endian.
  [[nodiscard]] static BlockKey FromInteger(std::uint64_t hash);
  [[nodiscard]] bool empty() const { return size == 0; }

  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

enum class EventType : std::uint16_t {
  kBind = 1,  // `block` starts a new life; with a key: attaches the page indexed under it
  kRetain,    // `block` has one more user
  kRelease,   // one user fewer; at 0 its pages may be evicted; below 0: ignored, counted
  kSeal,      // `step` fills `block`, whose key is `key`: its rows are protected; step 0: the step
              // that is begun next
  kCopy,      // `block` gets rows [0, rows) of `src`; kAllRows: shares its pages; at least one user
  kMove,      // `block` takes over pages, seal and users of `src`; Moves joined by `more`
              // happen at once
  kTruncate,  // removes rows >= `rows` of `block` that steps <= `step` wrote
  kReset,     // empties the block table and the key index
};

// One event: 56 bytes, without pointers and without padding.
struct Event {
  static constexpr std::int32_t kAllRows = -1;

  EventType type = EventType::kBind;
  std::uint8_t key_size = 0;  // bytes of `key` in use; 0 = no key
  std::uint8_t more = 0;      // Move: 1 = the next event is part of the same simultaneous move
  std::int32_t block = -1;    // the block; of Copy and Move: the destination
  std::int32_t src = -1;      // Copy, Move: the block copied or moved from
  std::int32_t rows = 0;      // Copy: number of rows, or kAllRows; Truncate: the first row removed
  std::uint64_t step = 0;  // Seal: the step that fills the block, 0 = the one that is begun next;
                           // Truncate: the last step affected
  std::array<std::uint8_t, BlockKey::kMaxBytes> key{};

  [[nodiscard]] static Event Bind(BlockId block, const BlockKey& key = {});
  [[nodiscard]] static Event Retain(BlockId block);
  [[nodiscard]] static Event Release(BlockId block);
  // Without a step: the seal of the step that is begun next.
  [[nodiscard]] static Event Seal(BlockId block, const BlockKey& key, StepId step = StepId());
  [[nodiscard]] static Event Copy(BlockId src, BlockId dst, std::int32_t rows = kAllRows);
  // `more` joins this Move with the next one: all Moves of a group happen at once.
  [[nodiscard]] static Event Move(BlockId src, BlockId dst, bool more = false);
  [[nodiscard]] static Event Truncate(BlockId block, std::int32_t row, StepId step);
  [[nodiscard]] static Event Reset();

  // The key of a Bind or Seal; empty if it has none.
  [[nodiscard]] BlockKey GetKey() const;

  friend bool operator==(const Event&, const Event&) = default;
};
static_assert(sizeof(Event) == 56 && std::is_trivially_copyable_v<Event>);

// The number of events at the front of `events` that take effect at once: a group of Moves, or one.
// REQUIRES: not empty.
[[nodiscard]] std::size_t GroupSize(std::span<const Event> events);

// A slot is where a row of a step writes its KV: block * block_tokens + offset. kPaddingSlot marks
// a row that writes no KV, such as the padding of a graph.
inline constexpr std::int64_t kPaddingSlot = -1;
// The slot of a row whose request did not ask for routing: -2 - slot. NotAsked(NotAsked(s)) == s.
[[nodiscard]] constexpr std::int64_t NotAsked(std::int64_t slot) {
  return -2 - slot;
}

// The rows of a forward as pairs of a block and an offset in it, one pair per row: for engines that
// keep these two arrays instead of slots. Both arrays may be unaligned.
struct PairRows {
  const void* block_idx = nullptr;       // [num_rows]: the block; negative = padding
  const void* local_position = nullptr;  // [num_rows]: offset in the block, [0, block_tokens);
                                         // not read where the block is negative
  const std::uint8_t* asked = nullptr;   // [num_rows]: 0 = the row's request did not ask for
                                         // routing; null = all asked
  std::size_t num_rows = 0;
  std::int32_t index_bytes = 4;   // of each entry of block_idx: 4 (int32) or 8 (int64)
  std::int32_t block_tokens = 0;  // tokens per block of block_idx: the store's, or a divisor of it
                                  // (kernel blocks); required
  std::int32_t position_bytes = 0;  // of each entry of local_position: 4 or 8; 0 = index_bytes

  [[nodiscard]] std::int32_t BytesOfPosition() const {
    return position_bytes == 0 ? index_bytes : position_bytes;
  }
};

// The argument of RoutingStore::BeginStep, which reads all arrays during the call only. The rows of
// the forward are given in one form: `slots` or `pairs`.
struct StepBatch {
  std::uint64_t step = 0;         // greater than every step begun before, by at
                                  // most 2^27; the first one: below 2^56
  std::uint64_t version = 0;      // version of the forward's weights
  const Event* events = nullptr;  // applied in this order, before the rows
  std::size_t num_events = 0;
  const std::int64_t* slots = nullptr;  // slot of each row of the forward, in batch order
  std::size_t num_slots = 0;
  // The caller has no buffer for the step's ids: the step is dropped as it begins.
  bool drop = false;
  const PairRows* pairs = nullptr;  // the rows, if not null; num_slots is then 0

  [[nodiscard]] std::span<const Event> event_span() const { return {events, num_events}; }
};

// The number of rows of `batch`, in whichever form they are given, with padding.
[[nodiscard]] inline std::size_t NumRows(const StepBatch& batch) {
  return batch.pairs != nullptr ? batch.pairs->num_rows : batch.num_slots;
}

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_EVENTS_H_
