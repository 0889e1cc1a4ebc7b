// Schedule messages: how an engine whose scheduler and worker are two processes reports a schedule.
//
// The scheduler's process has no store. It writes what it would report to one (events, snapshots)
// into a message with a ScheduleWriter, and sends the bytes to the worker with the schedule. The
// worker's process parses them and passes the message to its store, before it begins the step.
// docs/schedule-message.md defines the bytes.
//
// The parser accepts any bytes. A message can only contain what is listed here: it cannot begin or
// submit a step, and it contains no pointer and no index into a store.
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
//
// In the worker's process RoutingStore::ReportMessage parses the message, decides by its number
// whether it is the next one (MessageOrder), and appends what it contains.
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

// Consecutive events, a snapshot, or a request to forget a snapshot, in a ScheduleMessage.
struct ScheduleItem {
  enum class Kind : std::uint8_t {
    kEvents,    // RoutingStore::Report(message.EventsOf(item)); groups of Moves are complete
    kSnapshot,  // take rows [first, last) of message.BlocksOf(item), to be fetched under `tag`
    kForget,    // release the snapshot `tag`; nothing happens if there is none
  };

  Kind kind = Kind::kEvents;
  std::uint64_t tag = 0;    // chosen by the sender; any value
  std::int64_t first = 0;   // 0 <= first <= last <= blocks * block_tokens
  std::int64_t last = 0;    // one past the last row
  std::uint32_t begin = 0;  // the events or blocks are [begin, end) of the message's
  std::uint32_t end = 0;

  friend bool operator==(const ScheduleItem&, const ScheduleItem&) = default;
};

// A parsed message. Every number in it is within the limits with which it was parsed, and every
// event is valid for RoutingStore::Report. Whether a tag is in use is known to the store only.
struct ScheduleMessage {
  std::uint64_t epoch = 0;     // the sender, never 0; see MessageOrder
  std::uint64_t sequence = 0;  // 1 for the first message of the sender, then 2, ...
  StepId step;                 // the step of the schedule; invalid (0): a message without a step
  std::uint64_t version = 0;   // version of the step's weights; 0 without a step

  std::vector<ScheduleItem> items;  // in the order reported
  std::vector<Event> events;
  std::vector<BlockId> blocks;  // below num_blocks; negative: null blocks

  [[nodiscard]] std::span<const Event> EventsOf(const ScheduleItem& item) const {
    return std::span(events).subspan(item.begin, item.end - item.begin);
  }
  [[nodiscard]] std::span<const BlockId> BlocksOf(const ScheduleItem& item) const {
    return std::span(blocks).subspan(item.begin, item.end - item.begin);
  }

  friend bool operator==(const ScheduleMessage&, const ScheduleMessage&) = default;
};

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
  // fetched or forgotten. Every block must be below num_blocks. O(blocks).
  [[nodiscard]] absl::Status Snapshot(std::uint64_t tag, std::span<const BlockId> blocks,
                                      std::int64_t first, std::int64_t last);
  // Adds a request to release the snapshot `tag`, which is not going to be fetched (an abort).
  [[nodiscard]] absl::Status Forget(std::uint64_t tag);
  // Closes the message, gives it the next sequence number and returns its bytes, which stay valid
  // until the next Begin. Empty if no message is open. Every finished message must be sent, in this
  // order.
  [[nodiscard]] std::span<const std::uint8_t> Finish();

  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }
  // The sequence number of the message that is open, or else of the next one.
  [[nodiscard]] std::uint64_t next_sequence() const { return sequence_; }

 private:
  ScheduleWriter(const ScheduleLimits& limits, std::uint64_t epoch, std::uint64_t first_sequence)
      : limits_(limits), epoch_(epoch), sequence_(first_sequence) {}
  // Makes room for `most` bytes behind the message's items, or returns the errors of every call:
  // ResourceExhausted if `least` bytes do not fit the message.
  [[nodiscard]] absl::Status Reserve(std::size_t least, std::size_t most);

  ScheduleLimits limits_;
  std::uint64_t epoch_;
  std::uint64_t sequence_;
  StepId step_;       // of the open message
  StepId last_step_;  // the latest step of any message
  std::uint64_t version_ = 0;
  bool open_ = false;
  std::size_t size_ = 0;  // bytes of the header and the items, in bytes_
  std::uint32_t num_events_ = 0;
  std::uint32_t num_snapshots_ = 0;
  std::uint32_t num_forgets_ = 0;
  std::uint32_t num_blocks_ = 0;
  std::vector<std::uint8_t> bytes_;
  std::vector<BlockId> move_blocks_;  // scratch of Report
};

// Parses a message and checks all of it: a message that parses can be applied whole. Any bytes are
// safe, any thread. Vectors are sized from bytes that were seen to be there: they take at most 16
// bytes per byte of the message. `memory` is an old message, whose vectors are used again: parsing
// then does not allocate once they have grown. InvalidArgument naming the item, the rule and the
// value; ResourceExhausted if the message exceeds max_bytes or max_snapshots.
[[nodiscard]] absl::StatusOr<ScheduleMessage> ParseScheduleMessage(
    std::span<const std::uint8_t> bytes, const ScheduleLimits& limits, ScheduleMessage memory = {});

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_SCHEDULE_MESSAGE_H_
