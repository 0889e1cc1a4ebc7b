// Schedule messages for tests: written again from what was parsed, changed with a right check, and
// judged.
#ifndef WAYMARK_TESTS_SUPPORT_SCHEDULE_MESSAGES_H_
#define WAYMARK_TESTS_SUPPORT_SCHEDULE_MESSAGES_H_

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "blockstore/digest.h"
#include "blockstore/store/schedule_message.h"

namespace waymark::schedule_messages {

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
    const std::uint32_t count = item.end - item.begin;
    if (item.kind == ScheduleItem::Kind::kEvents) {
      if (item.begin != events || count == 0) return false;
      events += count;
    }
    if (item.kind != ScheduleItem::Kind::kSnapshot) continue;
    snapshots += 1;
    if (item.begin != blocks || item.first < 0 || item.first > item.last ||
        item.last > std::int64_t{count} * limits.block_tokens) {
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

}  // namespace waymark::schedule_messages

#endif  // WAYMARK_TESTS_SUPPORT_SCHEDULE_MESSAGES_H_
