// Schedule messages for tests: written again from what was parsed, changed with a right check, and
// judged.
#ifndef WAYMARK_TESTS_SUPPORT_SCHEDULE_MESSAGES_H_
#define WAYMARK_TESTS_SUPPORT_SCHEDULE_MESSAGES_H_

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/digest.h"
#include "blockstore/store/event_code.h"
#include "blockstore/store/log_records.h"
#include "blockstore/store/schedule_message.h"

namespace waymark {

// A record of a message, but for that of its schedule.
struct ScheduleItem {
  enum class Kind : std::uint8_t { kEvents, kSnapshot, kForget };
  Kind kind = Kind::kEvents;
  std::uint64_t tag = 0;
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::size_t begin = 0;  // the events or blocks are [begin, end) of the message's
  std::size_t end = 0;

  friend bool operator==(const ScheduleItem&, const ScheduleItem&) = default;
};

// What a message says. Of a snapshot, blocks before its rows are not in the message: -1.
struct ScheduleMessage {
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;
  StepId step;
  std::uint64_t version = 0;
  std::vector<ScheduleItem> items;
  std::vector<Event> events;
  std::vector<BlockId> blocks;

  [[nodiscard]] std::span<const Event> EventsOf(const ScheduleItem& item) const {
    return std::span(events).subspan(item.begin, item.end - item.begin);
  }
  [[nodiscard]] std::span<const BlockId> BlocksOf(const ScheduleItem& item) const {
    return std::span(blocks).subspan(item.begin, item.end - item.begin);
  }
  friend bool operator==(const ScheduleMessage&, const ScheduleMessage&) = default;
};

// Checks a message as a store does, and reads it.
inline absl::StatusOr<ScheduleMessage> ParseScheduleMessage(std::span<const std::uint8_t> bytes,
                                                            const ScheduleLimits& limits) {
  ScheduleFrame frame;
  if (absl::Status status = ParseScheduleFrame(bytes, limits, frame); !status.ok()) return status;
  std::vector<std::uint64_t> aligned(frame.records.size() / 8 + 1);
  auto* const at = reinterpret_cast<std::uint8_t*>(aligned.data());
  if (!frame.records.empty()) std::memcpy(at, frame.records.data(), frame.records.size());
  const std::span<std::uint8_t> records(at, frame.records.size());
  ScheduleScratch scratch;
  if (absl::Status status = CheckScheduleRecords(records, limits, ~std::uint64_t{0} - 1, scratch);
      !status.ok()) {
    return status;
  }
  ScheduleMessage message{.epoch = frame.epoch, .sequence = frame.sequence};
  ForEachRecord(records, [&message](const RecordHeader& record) {
    ScheduleItem item;
    switch (record.kind) {
      case RecordKind::kSchedule: {
        const auto& schedule = reinterpret_cast<const ScheduleRecord&>(record);
        message.step = StepId(schedule.step);
        message.version = schedule.version;
        return;
      }
      case RecordKind::kEvents: {
        item.begin = message.events.size();
        std::vector<Event> piece;
        EventReader reader(reinterpret_cast<const EventsRecord&>(record).events());
        while (reader.Next(piece))
          message.events.insert(message.events.end(), piece.begin(), piece.end());
        item.end = message.events.size();
        break;
      }
      case RecordKind::kSnapshot: {
        const auto& snapshot = reinterpret_cast<const SnapshotRecord&>(record);
        item = {ScheduleItem::Kind::kSnapshot,
                snapshot.tag,
                snapshot.first,
                snapshot.last,
                message.blocks.size(),
                0};
        message.blocks.resize(message.blocks.size() + snapshot.skipped);
        message.blocks.insert(message.blocks.end(), snapshot.blocks().begin(),
                              snapshot.blocks().end());
        item.end = message.blocks.size();
        break;
      }
      default:
        item.kind = ScheduleItem::Kind::kForget;
        item.tag = reinterpret_cast<const ForgetRecord&>(record).tag;
    }
    message.items.push_back(item);
  });
  return message;
}

namespace schedule_messages {

// The bytes of a message; empty if a writer with these limits refuses it.
inline std::vector<std::uint8_t> Written(const ScheduleMessage& message,
                                         const ScheduleLimits& limits) {
  auto writer = ScheduleWriter::Create(limits, message.epoch, message.sequence);
  if (!writer.ok() || !writer->Begin(message.step, message.version).ok()) return {};
  for (const ScheduleItem& item : message.items) {
    absl::Status status;
    switch (item.kind) {
      case ScheduleItem::Kind::kEvents:
        status = writer->Report(message.EventsOf(item));
        break;
      case ScheduleItem::Kind::kSnapshot:
        status = writer->Snapshot(item.tag, message.BlocksOf(item), item.first, item.last);
        break;
      case ScheduleItem::Kind::kForget:
        status = writer->Forget(item.tag);
        break;
    }
    if (!status.ok()) return {};
  }
  const std::span<const std::uint8_t> bytes = writer->Finish();
  return {bytes.begin(), bytes.end()};
}

// Corrects the number of bytes and the check of a message that was changed.
inline void Correct(std::span<std::uint8_t> bytes) {
  if (bytes.size() < 16) return;
  const auto size = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(bytes.data() + 4, &size, sizeof(size));
  const std::uint64_t check = RowDigest(bytes.first(bytes.size() - sizeof(check)));
  std::memcpy(bytes.data() + bytes.size() - sizeof(check), &check, sizeof(check));
}

// Whether every number of a parsed message is within its limits.
inline bool WithinLimits(const ScheduleMessage& message, const ScheduleLimits& limits) {
  std::size_t events = 0;
  std::size_t blocks = 0;
  std::size_t snapshots = 0;
  for (const ScheduleItem& item : message.items) {
    const std::size_t count = item.end - item.begin;
    if (item.kind == ScheduleItem::Kind::kEvents) {
      if (item.begin != events || count == 0) return false;
      events += count;
    }
    if (item.kind != ScheduleItem::Kind::kSnapshot) continue;
    snapshots += 1;
    if (item.begin != blocks || item.first < 0 || item.first > item.last ||
        item.last > static_cast<std::int64_t>(count) * limits.block_tokens) {
      return false;
    }
    blocks += count;
  }
  if (events != message.events.size() || blocks != message.blocks.size() ||
      snapshots > limits.max_snapshots) {
    return false;
  }
  for (const BlockId block : message.blocks) {
    if (block.value() >= limits.num_blocks) return false;
  }
  for (const Event& event : message.events) {
    if (event.type < EventType::kBind || event.type > EventType::kReset ||
        event.block >= limits.num_blocks || event.src >= limits.num_blocks ||
        event.rows < Event::kAllRows || event.rows > limits.block_tokens ||
        event.key_size > BlockKey::kMaxBytes || event.more > 1) {
      return false;
    }
    if (event.type == EventType::kSeal && message.step.valid() &&
        event.step > message.step.value()) {
      return false;
    }
  }
  return message.epoch != 0 && message.sequence != 0 && message.step.value() != ~std::uint64_t{0} &&
         (message.step.valid() || message.version == 0);
}

}  // namespace schedule_messages
}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_SCHEDULE_MESSAGES_H_
