// The records of the log, as they lie in its ring. Internal to blockstore.
//
// A record is written by the engine's thread and read by the thread that applies it, in one
// process, so it may hold pointers. Sizes are in bytes and multiples of 8. docs/architecture.md,
// "The log", has the rules.
#ifndef WAYMARK_BLOCKSTORE_STORE_LOG_RECORDS_H_
#define WAYMARK_BLOCKSTORE_STORE_LOG_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/ids.h"
#include "blockstore/store/step_rows.h"

namespace waymark {

struct SnapshotState;

enum class RecordKind : std::uint16_t {
  kSchedule = 1,  // ScheduleRecord
  kEvents,        // EventsRecord, then the events
  kBegin,         // BeginRecord, then the rows' slots
  kSubmit,        // SubmitRecord
  kDrop,          // EndRecord
  kCancel,        // EndRecord
  kSnapshot,      // SnapshotRecord, then `num_blocks` BlockIds
  kPoison,        // PoisonRecord, then `num_open` step numbers (uint64)
};

// The first member of every record.
struct RecordHeader {
  std::uint32_t bytes = 0;  // of the whole record, this header included
  RecordKind kind = RecordKind::kSchedule;
  std::uint16_t flags = 0;  // kBegin only: the flags below
};
static_assert(sizeof(RecordHeader) == 8);

inline constexpr std::uint16_t kBeginDropped = 1;      // no room in flight, or no buffer
inline constexpr std::uint16_t kBeginDeviceSlots = 2;  // StepBatch::device_slots
inline constexpr std::uint16_t kBeginFull = 4;         // dropped: max_steps_in_flight are in flight
inline constexpr std::uint16_t kBeginDerives = 8;      // StepBatch::derive_events

// From now on, keyed Binds look their keys up under `version`.
struct ScheduleRecord {
  static constexpr RecordKind kKind = RecordKind::kSchedule;
  RecordHeader header;
  std::uint64_t step = 0;  // of the schedule; 0: none is open
  std::uint64_t version = 0;
};

// Events in the order reported. A Seal of the step that is begun next has step 0.
struct EventsRecord {
  static constexpr RecordKind kKind = RecordKind::kEvents;
  RecordHeader header;
  std::uint64_t event_bytes = 0;  // of the events behind this struct, as EncodeEvents wrote them
  [[nodiscard]] std::span<const std::uint8_t> events() const {
    return {reinterpret_cast<const std::uint8_t*>(this + 1), static_cast<std::size_t>(event_bytes)};
  }
};

// A step begins: its rows are claimed, and the pending seals applied.
struct BeginRecord {
  static constexpr RecordKind kKind = RecordKind::kBegin;
  RecordHeader header;
  std::uint64_t step = 0;
  std::uint64_t version = 0;
  std::uint64_t reported_at = 0;  // TicksNow()
  std::uint64_t slot_bytes = 0;   // of the slots behind this struct, as SlotEncoder wrote them
  [[nodiscard]] std::span<const std::uint8_t> slots() const {
    return {reinterpret_cast<const std::uint8_t*>(this + 1), static_cast<std::size_t>(slot_bytes)};
  }
};

// A step ends with its ids, which land.
struct SubmitRecord {
  static constexpr RecordKind kKind = RecordKind::kSubmit;
  RecordHeader header;
  std::uint64_t step = 0;
  StepRows* rows = nullptr;
  std::uint64_t reported_at = 0;  // TicksNow()
};

// A step ends without its ids: kDrop or kCancel.
struct EndRecord {
  RecordHeader header;
  std::uint64_t step = 0;
};

// Pins rows [first, last) for the ticket `state`. The blocks listed begin at block `skipped` of the
// sequence; those before hold no row of the range.
struct SnapshotRecord {
  static constexpr RecordKind kKind = RecordKind::kSnapshot;
  RecordHeader header;
  SnapshotState* state = nullptr;
  std::uint32_t num_blocks = 0;
  std::uint32_t skipped = 0;
  [[nodiscard]] std::span<const BlockId> blocks() const {
    return {reinterpret_cast<const BlockId*>(this + 1), num_blocks};
  }
};

// Records before this one were lost, because the log was full.
struct PoisonRecord {
  static constexpr RecordKind kKind = RecordKind::kPoison;
  RecordHeader header;
  std::uint64_t last = 0;      // the last step reported as begun
  std::uint64_t version = 0;   // the current version
  std::uint64_t num_open = 0;  // steps that the engine has begun and not ended
  [[nodiscard]] std::span<const std::uint64_t> open() const {
    return {reinterpret_cast<const std::uint64_t*>(this + 1), static_cast<std::size_t>(num_open)};
  }
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_LOG_RECORDS_H_
