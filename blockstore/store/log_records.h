// The records of the log, as they lie in its ring. Internal to blockstore.
//
// A record is written by the engine's thread and read by the thread that applies it. Sizes are in
// bytes and multiples of 8. docs/internals/architecture.md, "The log", has the rules.
#ifndef WAYMARK_BLOCKSTORE_STORE_LOG_RECORDS_H_
#define WAYMARK_BLOCKSTORE_STORE_LOG_RECORDS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/ids.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/store/step_rows.h"

namespace waymark {

struct SnapshotState;

enum class RecordKind : std::uint16_t {
  kSchedule = 1,  // ScheduleRecord
  kEvents,        // EventsRecord, then the events
  kStep,          // StepRecord, then the rows' slots
  kSnapshot,      // SnapshotRecord, then `num_blocks` BlockIds
  kPoison,        // PoisonRecord
};

// The first member of every record.
struct RecordHeader {
  std::uint32_t bytes = 0;  // of the whole record, this header included
  RecordKind kind = RecordKind::kSchedule;
  std::uint16_t flags = 0;  // the flags below
};
static_assert(sizeof(RecordHeader) == 8);

inline constexpr std::uint16_t kStepFull = 2;       // dropped: max_steps_in_flight
inline constexpr std::uint16_t kSnapshotOwner = 8;  // SnapshotRecord::owner
inline constexpr std::uint16_t kStepNoBuffer = 16;  // kStepFull, or StepBatch::drop

// What follows belongs to the schedule of `step`, whose weights have `version`.
struct ScheduleRecord {
  static constexpr RecordKind kKind = RecordKind::kSchedule;
  RecordHeader header;
  std::uint64_t step = 0;
  std::uint64_t version = 0;
};

// Events in the order reported. An own seal, of the step to come, names that step or 0.
struct EventsRecord {
  static constexpr RecordKind kKind = RecordKind::kEvents;
  RecordHeader header;
  std::uint64_t event_bytes = 0;  // of the events behind this struct, as EncodeEvents wrote them
  [[nodiscard]] std::span<const std::uint8_t> events() const {
    return {reinterpret_cast<const std::uint8_t*>(this + 1), static_cast<std::size_t>(event_bytes)};
  }
};

// How the ids of a step end. Until then it is *open*: it waits in the log, and what stands behind
// it waits with it.
enum class Verdict : std::uint32_t {
  kOpen,
  kReady,   // StepRecord::rows has them, or will: see StepRows::Poll
  kLost,    // the forward ran, or may have: the rows are missing (capacity)
  kNotRun,  // no kernel that writes KV was issued: the step has no effect
};

// A step: its rows are written when its ids are there.
struct StepRecord {
  static constexpr RecordKind kKind = RecordKind::kStep;
  RecordHeader header;
  std::uint64_t step = 0;
  std::uint64_t version = 0;
  std::uint64_t told_at = 0;     // TicksNow()
  std::uint64_t slot_bytes = 0;  // of the slots behind this struct, as EncodeSlots wrote them
  // The engine's thread sets these once, after it has published the record: first `rows` and
  // `decided_at`, then the verdict (release).
  std::atomic<Verdict> verdict{Verdict::kOpen};
  std::uint32_t unused = 0;
  StepRows* rows = nullptr;      // the caller's until Done(); null: no rows
  std::uint64_t decided_at = 0;  // TicksNow()
  [[nodiscard]] std::span<const std::uint8_t> slots() const {
    return {reinterpret_cast<const std::uint8_t*>(this + 1), static_cast<std::size_t>(slot_bytes)};
  }
};
static_assert(sizeof(StepRecord) == 64);

// Behind the blocks of a snapshot with kSnapshotOwner; then `num_keys` BlockKeys, from block
// `skipped` of the sequence on.
struct SnapshotOwnerRecord {
  std::uint64_t last_step = 0;
  std::uint64_t num_keys = 0;
};

// Pins rows [first, last). The blocks listed begin at block `skipped` of the sequence; those before
// hold no row of the range.
struct SnapshotRecord {
  static constexpr RecordKind kKind = RecordKind::kSnapshot;
  RecordHeader header;
  SnapshotState* state = nullptr;  // its ticket
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::uint32_t num_blocks = 0;
  std::uint32_t skipped = 0;
  [[nodiscard]] std::span<const BlockId> blocks() const {
    return {reinterpret_cast<const BlockId*>(this + 1), num_blocks};
  }
  [[nodiscard]] SnapshotOwner owner() const {
    if ((header.flags & kSnapshotOwner) == 0) return {};
    const std::size_t at = (sizeof(BlockId) * num_blocks + 7) / 8 * 8;
    const auto& record = *reinterpret_cast<const SnapshotOwnerRecord*>(
        reinterpret_cast<const std::uint8_t*>(this + 1) + at);
    return {record.last_step, {reinterpret_cast<const BlockKey*>(&record + 1), record.num_keys}};
  }
};

// Records before this one were lost.
struct PoisonRecord {
  static constexpr RecordKind kKind = RecordKind::kPoison;
  RecordHeader header;
  std::uint64_t last = 0;     // the last step that was told
  std::uint64_t version = 0;  // the current version
  std::uint64_t cause = 0;    // Cause
};

// The size of a record whose fields and tail have `bytes`.
constexpr std::size_t RoundUpRecord(std::size_t bytes) {
  return (bytes + 7) / 8 * 8;
}

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_LOG_RECORDS_H_
