// EventCode: the rules for events that need no state, and the bytes of an event in the log and in a
// flight. Internal to blockstore.
//
// Functions without state: any thread. Nothing throws but bad_alloc, where `scratch` must grow. An
// event has 4 to 48 bytes, little-endian, without padding: its head, then those fields that its
// kind has, then the bytes of its key.
//
//   kind     head                    fields (int32; step: uint64)
//   Bind     bytes of the key        block
//   Retain   0                       block
//   Release  0                       block
//   Seal     bytes of the key        block, step
//   Copy     0                       block, src, rows
//   Move     `more`                  block, src
//   Truncate 0                       block, rows, step
//   Reset    0
#ifndef WAYMARK_BLOCKSTORE_STORE_EVENT_CODE_H_
#define WAYMARK_BLOCKSTORE_STORE_EVENT_CODE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/step_code.h"

namespace waymark {

// What events are validated against.
struct EventLimits {
  std::int32_t num_blocks = 0;    // StoreOptions
  std::int32_t block_tokens = 0;  // StoreOptions
  std::uint64_t last_seal = 0;    // the latest step that a Seal may name
};

// The first bytes of an event.
struct EventHead {
  std::uint8_t kind;    // an EventType
  std::uint8_t detail;  // see above
  std::uint16_t zero;
};
static_assert(sizeof(EventHead) == 4);

inline constexpr std::size_t kMaxEventBytes = 16 + BlockKey::kMaxBytes;

// The first rule that `events` break, in their order, with the event's index and the value; or ok.
// Of a group of Moves: after the rules of each Move, the group's (kUnfinishedMove,
// kDuplicateMove: with the index of its first Move). `scratch` is used behind its end and left as
// it was. Code: InvalidArgument. O(n), for groups of Moves O(n log n).
[[nodiscard]] StepCode CheckEvents(std::span<const Event> events, const EventLimits& limits,
                                   std::vector<BlockId>& scratch);

// CheckEvents, and writes the events to `out`, which has room for kMaxEventBytes per event and may
// be unaligned. `*bytes` is the number of bytes written. On an error `out` is unspecified and
// `*bytes` unchanged. Fields that an event's kind does not have are not read.
[[nodiscard]] StepCode EncodeEvents(std::span<const Event> events, const EventLimits& limits,
                                    std::vector<BlockId>& scratch, std::uint8_t* out,
                                    std::size_t* bytes);

// Whether `bytes`, which may come from outside, are whole events to their end, so that EventReader
// may read them. InvalidArgument naming the event as one of `list`, the rule and the value.
[[nodiscard]] absl::Status CheckEventBytes(std::span<const std::uint8_t> bytes,
                                           absl::string_view list);

// Reads encoded events a piece at a time. A value.
class EventReader {
 public:
  // The most events of a piece, except a group of Moves.
  static constexpr std::size_t kPiece = 128;

  // REQUIRES: `bytes` are what one EncodeEvents wrote, or have passed CheckEventBytes. They must
  // outlive the reader.
  explicit EventReader(std::span<const std::uint8_t> bytes) : rest_(bytes) {}
  // Replaces `events` by the next events; a group of Moves is in one piece. False, with no events,
  // at the end. Does not allocate if `events` has the capacity of the piece.
  bool Next(std::vector<Event>& events);

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_EVENT_CODE_H_
