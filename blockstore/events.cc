#include "blockstore/events.h"

#include <algorithm>
#include <cstring>

namespace waymark {
namespace {

Event MakeEvent(EventType type, BlockId block) {
  Event event;
  event.type = type;
  event.block = block.value();
  return event;
}

void SetKey(Event& event, const BlockKey& key) {
  event.key = key.bytes;
  event.key_size = key.size;
}

}  // namespace

BlockKey BlockKey::FromBytes(std::span<const std::uint8_t> bytes) {
  BlockKey key;
  key.size = static_cast<std::uint8_t>(std::min(bytes.size(), kMaxBytes));
  std::copy_n(bytes.begin(), key.size, key.bytes.begin());
  return key;
}

BlockKey BlockKey::FromInteger(std::uint64_t hash) {
  BlockKey key;
  key.size = sizeof(hash);
  std::memcpy(key.bytes.data(), &hash, sizeof(hash));
  return key;
}

Event Event::Bind(BlockId block, const BlockKey& key) {
  Event event = MakeEvent(EventType::kBind, block);
  SetKey(event, key);
  return event;
}

Event Event::Retain(BlockId block) {
  return MakeEvent(EventType::kRetain, block);
}

Event Event::Release(BlockId block) {
  return MakeEvent(EventType::kRelease, block);
}

Event Event::Seal(BlockId block, const BlockKey& key, StepId step) {
  Event event = MakeEvent(EventType::kSeal, block);
  SetKey(event, key);
  event.step = step.value();
  return event;
}

Event Event::Copy(BlockId src, BlockId dst, std::int32_t rows) {
  Event event = MakeEvent(EventType::kCopy, dst);
  event.src = src.value();
  event.rows = rows;
  return event;
}

Event Event::Move(BlockId src, BlockId dst, bool more) {
  Event event = MakeEvent(EventType::kMove, dst);
  event.src = src.value();
  event.more = more ? 1 : 0;
  return event;
}

Event Event::Truncate(BlockId block, std::int32_t row, StepId step) {
  Event event = MakeEvent(EventType::kTruncate, block);
  event.rows = row;
  event.step = step.value();
  return event;
}

Event Event::Reset() {
  return MakeEvent(EventType::kReset, BlockId());
}

BlockKey Event::GetKey() const {
  return BlockKey::FromBytes({key.data(), std::min<std::size_t>(key_size, key.size())});
}

std::size_t GroupSize(std::span<const Event> events) {
  std::size_t at = 1;
  if (events[0].type != EventType::kMove) return at;
  while (events[at - 1].more != 0 && at < events.size() && events[at].type == EventType::kMove) {
    ++at;
  }
  return at;
}

}  // namespace waymark
