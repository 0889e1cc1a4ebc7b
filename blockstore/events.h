// What an engine tells the store about its KV blocks: events, and the batch that a step brings.
//
// Everything here is plain data of C layout: it can be copied, sent to the process where the rows
// are, recorded and replayed. Applying a batch is RoutingStore::BeginStep; see docs/architecture.md
// for the rules. Null blocks (negative, or declared when the store was made) are legal in every
// event; such an event is ignored and counted, except that a Copy or Move *from* a null block
// leaves its destination never written.
#ifndef WAYMARK_BLOCKSTORE_EVENTS_H_
#define WAYMARK_BLOCKSTORE_EVENTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/ids.h"

namespace waymark {

// The engine's own prefix-chain hash of a full block: 1 ... 32 bytes. An empty key is no key.
struct BlockKey {
  static constexpr std::size_t kMaxBytes = 32;

  std::array<std::uint8_t, kMaxBytes> bytes{};  // bytes beyond `size` are zero
  std::uint8_t size = 0;

  // Keeps the first 32 bytes of what it is given.
  [[nodiscard]] static BlockKey FromBytes(std::span<const std::uint8_t> bytes);
  // The 8 little-endian bytes of an integer hash.
  [[nodiscard]] static BlockKey FromInteger(std::uint64_t hash);
  [[nodiscard]] bool empty() const { return size == 0; }

  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

enum class EventType : std::uint16_t {
  kBind = 1,  // new life of `block`; with a key: attach the page indexed under it, if there is one
  kRetain,    // one more user of `block`
  kRelease,   // one user fewer; at zero its pages may be evicted; below zero: ignored and counted
  kSeal,      // `block` is full (or will be, by `step`) and known by `key`: its rows are protected
  kCopy,      // `block` gets the rows [0, rows) of `source` (kAllRows: shares its pages)
  kMove,      // `block` takes over what `source` is; consecutive Moves joined by `more` are
              // simultaneous
  kTruncate,  // rows >= `rows` of `block` written by steps <= `step` are no more
  kReset,     // table and key index are emptied
};

// One event. 56 bytes, no padding that is not named, no pointers.
struct Event {
  static constexpr std::int32_t kAllRows = -1;

  EventType type = EventType::kBind;
  std::uint8_t key_size = 0;  // bytes of `key` in use; 0 = no key
  std::uint8_t more = 0;      // kMove: 1 = the next event belongs to the same simultaneous move
  std::int32_t block = -1;    // the block it is about; Copy, Move: the destination
  std::int32_t source = -1;   // Copy, Move: the source
  std::int32_t rows = 0;      // Copy: rows, or kAllRows; Truncate: the first row that goes
  std::uint64_t step = 0;     // Seal: the step that fills the block; Truncate: the last step meant
  std::array<std::uint8_t, BlockKey::kMaxBytes> key{};

  [[nodiscard]] static Event Bind(BlockId block, const BlockKey& key = {});
  [[nodiscard]] static Event Retain(BlockId block);
  [[nodiscard]] static Event Release(BlockId block);
  [[nodiscard]] static Event Seal(BlockId block, const BlockKey& key, StepId step);
  [[nodiscard]] static Event Copy(BlockId source, BlockId destination,
                                  std::int32_t rows = kAllRows);
  // `more` joins this pair with the Move that follows: all pairs of a group happen at once.
  [[nodiscard]] static Event Move(BlockId source, BlockId destination, bool more = false);
  [[nodiscard]] static Event Truncate(BlockId block, std::int32_t row, StepId step);
  [[nodiscard]] static Event Reset();

  // The key of a Bind or Seal; empty when it has none.
  [[nodiscard]] BlockKey GetKey() const;

  friend bool operator==(const Event&, const Event&) = default;
};
static_assert(sizeof(Event) == 56 && std::is_trivially_copyable_v<Event>);

// "Bind", "Seal", ... Static storage; "unknown event" for a number that names none.
[[nodiscard]] std::string_view EventName(EventType type);
// One line for people, e.g. "Seal(block 7, key 0a1b..., step 12)".
[[nodiscard]] std::string DescribeEvent(const Event& event);

// Slots: where the rows of a step go. block * block_tokens + offset asks for the row's routing;
inline constexpr std::int64_t kPaddingSlot = -1;  // writes no KV: no row
// the slot of a row that did not ask: `-2 - slot`. Its own inverse.
[[nodiscard]] constexpr std::int64_t NotAsked(std::int64_t slot) {
  return -2 - slot;
}

// Appends the slots of rows [first, last) of a sequence that lies in `blocks`, of block_tokens
// tokens each; of those, that lie there: rows past the last block have none. With `asked` false, as
// of rows that did not ask. What a request may write whose accepted drafts the host does not know
// yet is such a range (StepBatch::device_slots). REQUIRES: 0 <= first, block_tokens >= 1.
void AppendSlots(std::span<const BlockId> blocks, std::int32_t block_tokens, std::int64_t first,
                 std::int64_t last, bool asked, std::vector<std::int64_t>& slots);

// What a step is begun with. Borrows both arrays; they are only read during the call.
struct StepBatch {
  std::uint64_t step = 0;         // > every step begun before, and below 2^64 - 1
  std::uint64_t version = 0;      // weights of the forward
  const Event* events = nullptr;  // applied in this order, before the claims
  std::size_t num_events = 0;
  const std::int64_t* slots = nullptr;  // slot of each row of the forward, in batch order
  std::size_t num_slots = 0;
  // Which rows the forward writes is known on the device only (async scheduling with speculative
  // decoding): `slots` are all that it may write, in any order, and the source of the step says
  // which it did (RowSource::Slots). One that a row may write that asked, and another that did not,
  // is asked for.
  bool device_slots = false;

  [[nodiscard]] std::span<const Event> event_span() const { return {events, num_events}; }
  [[nodiscard]] std::span<const std::int64_t> slot_span() const { return {slots, num_slots}; }
};

// A batch that owns its arrays: what comes out of a recording or off a wire.
struct OwnedStepBatch {
  std::uint64_t step = 0;
  std::uint64_t version = 0;
  std::vector<Event> events;
  std::vector<std::int64_t> slots;
  bool device_slots = false;

  // A view of this object; valid while it is not changed.
  [[nodiscard]] StepBatch view() const {
    return {step, version, events.data(), events.size(), slots.data(), slots.size(), device_slots};
  }
  friend bool operator==(const OwnedStepBatch&, const OwnedStepBatch&) = default;
};

// The four letters that `batch` begins with when it is serialised. Static storage.
[[nodiscard]] const char* BatchMagic(const StepBatch& batch);
// Bytes that SerializeBatch appends for `batch`.
[[nodiscard]] std::size_t SerializedSize(const StepBatch& batch);
// Appends `batch` to `out`: magic "WMB1" ("WMB2" with device_slots), step, version, counts (uint64
// each), events, slots; all little-endian, events field by field in declaration order (56 bytes
// each).
void SerializeBatch(const StepBatch& batch, std::string& out);
// Reads one batch from the front of `bytes` and, on success, moves `bytes` past it. InvalidArgument
// on anything that SerializeBatch does not write; `bytes` is then unchanged. Any input is safe.
[[nodiscard]] absl::StatusOr<OwnedStepBatch> ParseBatch(std::span<const std::uint8_t>& bytes);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_EVENTS_H_
