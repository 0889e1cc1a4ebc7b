// Schedule messages: how an engine whose scheduler and worker are two processes reports a schedule.
//
// The scheduler's process has no store. It writes what it would report to one (events, snapshots)
// into a message with a ScheduleWriter, and sends the bytes to the worker with the schedule. The
// worker passes them to RoutingStore::ReportMessage before it begins the step.
// docs/internals/schedule-message.md defines the bytes: records of the log (log_records.h), framed.
//
// Any bytes are safe. A message can only contain what is listed here: it cannot tell or end a step,
// and it contains no pointer and no index into a store.
//
// Example, in the scheduler's process:
//
//   auto writer = ScheduleWriter::Create({.num_blocks = 4096, .block_tokens = 16});
//   if (!writer.ok()) return writer.status();
//   absl::Status status = writer->Begin(StepId(7), version);
//   if (status.ok()) status = writer->Report(events);
//   if (status.ok()) status = writer->Snapshot(tag, blocks, 0, 33);  // a request has finished
//   if (!status.ok()) return status;
//   Send(writer->Finish());
#ifndef WAYMARK_BLOCKSTORE_STORE_SCHEDULE_MESSAGE_H_
#define WAYMARK_BLOCKSTORE_STORE_SCHEDULE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"

namespace waymark {

// What a message may contain. Both processes use the same limits, so that a mistake is reported in
// the process that made it.
struct ScheduleLimits {
  std::int32_t num_blocks = 0;    // StoreOptions::num_blocks; at least 1. Required
  std::int32_t block_tokens = 0;  // tokens per block; at least 1. Required
  std::uint32_t max_bytes = std::uint32_t{16} << 20;  // bytes of a message; 64 ... 2^30
  std::uint32_t max_snapshots = 4096;                 // snapshots in a message

  // InvalidArgument naming the field, the rule and the value.
  [[nodiscard]] absl::Status Validate() const;

  friend bool operator==(const ScheduleLimits&, const ScheduleLimits&) = default;
};

// A message whose frame is right.
struct ScheduleFrame {
  std::uint64_t epoch = 0;                // the sender, never 0; see MessageOrder
  std::uint64_t sequence = 0;             // 1 for the first message of the sender, then 2, ...
  std::span<const std::uint8_t> records;  // of the message's bytes; not checked
};

// Checks the bytes around the records of a message, which takes O(bytes). Any thread.
// InvalidArgument naming the field, the rule and the value; ResourceExhausted if the message
// exceeds max_bytes.
[[nodiscard]] absl::Status ParseScheduleFrame(std::span<const std::uint8_t> bytes,
                                              const ScheduleLimits& limits, ScheduleFrame& frame);

// Memory that CheckScheduleRecords uses again.
struct ScheduleScratch {
  std::vector<Event> events;
  std::vector<BlockId> blocks;
};

// The rules of all records of a message: what passes can be applied whole, and read as
// ForEachRecord does. `records` are 8-byte aligned, and must not change any more: a copy, where
// others may write to the message. `last_seal`: the latest step that a Seal may name if the message
// has no step. Whether a tag is in use is known to the store only. Any thread. InvalidArgument
// naming the record, the rule and the value; ResourceExhausted if there are more than
// max_snapshots.
[[nodiscard]] absl::Status CheckScheduleRecords(std::span<const std::uint8_t> records,
                                                const ScheduleLimits& limits,
                                                std::uint64_t last_seal, ScheduleScratch& scratch);

// Checks rows [first, last) of the sequence whose KV is in `blocks`, and returns the blocks that
// have a row of them; `*skipped` is the number of those before. InvalidArgument naming the
// argument, the rule and the value.
[[nodiscard]] absl::StatusOr<std::span<const BlockId>> BlocksOfRows(std::span<const BlockId> blocks,
                                                                    std::int64_t first,
                                                                    std::int64_t last,
                                                                    const ScheduleLimits& limits,
                                                                    std::uint32_t* skipped);

// Writes the messages of one sender. One thread at a time. A refused call changes nothing. Calls
// that succeed do not allocate once the writer's memory has grown to the size of its messages.
//
// Errors, of every call: FailedPrecondition if no message is open (Begin: if one is open);
// ResourceExhausted if the message would exceed max_bytes or max_snapshots: finish and send this
// message, and begin another of the same step; InvalidArgument for anything else, naming the
// argument, the rule and the value.
class ScheduleWriter {
 public:
  // A writer with a random epoch: a restarted scheduler is another sender. `epoch` and
  // `first_sequence` other than 0 are used instead of a random epoch and 1, to write a message
  // again. InvalidArgument for bad limits.
  [[nodiscard]] static absl::StatusOr<ScheduleWriter> Create(const ScheduleLimits& limits,
                                                             std::uint64_t epoch = 0,
                                                             std::uint64_t first_sequence = 0);
  // Not copied: two writers of one epoch would give the same number to different messages.
  ScheduleWriter(ScheduleWriter&&) = default;
  ScheduleWriter& operator=(ScheduleWriter&&) = default;

  // Opens a message of the schedule of `step`, which is at least the step of the messages before
  // and below 2^64 - 1. StepId() opens a message without a step, for an engine that goes idle;
  // `version` is then 0.
  [[nodiscard]] absl::Status Begin(StepId step, std::uint64_t version);
  // Adds events, by the rules of blockstore/events.h: all of them, or none if one is invalid. A
  // group of Moves joined by `more` is complete in one call. The step of a Seal is not later than
  // the message's step; 0 is the step that is begun next. O(events).
  [[nodiscard]] absl::Status Report(std::span<const Event> events);
  // Adds a snapshot of rows [first, last) of the sequence whose KV is in `blocks`, as
  // RoutingStore::TakeSnapshot. `tag` names it; no other snapshot may have this tag until it was
  // fetched or forgotten: AlreadyExists within one message. O(blocks).
  [[nodiscard]] absl::Status Snapshot(std::uint64_t tag, std::span<const BlockId> blocks,
                                      std::int64_t first, std::int64_t last);
  // Adds a request to release the snapshot `tag`, which is not going to be fetched (an abort).
  [[nodiscard]] absl::Status Forget(std::uint64_t tag);
  // Closes the message, gives it the next sequence number and returns its bytes, which stay valid
  // until the next Begin. Empty if no message is open. Every finished message must be sent, in this
  // order.
  [[nodiscard]] std::span<const std::uint8_t> Finish();

  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }

 private:
  ScheduleWriter(const ScheduleLimits& limits, std::uint64_t epoch, std::uint64_t first_sequence)
      : limits_(limits), epoch_(epoch), sequence_(first_sequence) {}
  // Makes room for `most` bytes behind the message's records, or returns the errors of every call:
  // ResourceExhausted if `least` bytes do not fit the message.
  [[nodiscard]] absl::Status Reserve(std::size_t least, std::size_t most);
  // Appends a record with `tail` behind it. REQUIRES: there is room for both.
  template <class Record>
  void Put(Record record, std::span<const std::uint8_t> tail = {});

  ScheduleLimits limits_;
  std::uint64_t epoch_;
  std::uint64_t sequence_;
  StepId step_;       // of the open message
  StepId last_step_;  // the latest step of any message
  bool open_ = false;
  std::size_t size_ = 0;  // bytes of the header and the records, in bytes_
  std::uint32_t num_snapshots_ = 0;
  std::vector<std::uint64_t> tags_;  // of the message's snapshots, in order, without the forgotten
  std::vector<std::uint8_t> bytes_;
  std::vector<BlockId> move_blocks_;  // scratch of Report
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_SCHEDULE_MESSAGE_H_
