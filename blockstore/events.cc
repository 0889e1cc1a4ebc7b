#include "blockstore/events.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "blockstore/step_path.h"

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

// Element i of an array of T, which may be unaligned.
template <class T>
T At(const void* array, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array) + i * sizeof(T), sizeof(T));
  return value;
}

// Writes to an array that may be unaligned.
class SlotWriter {
 public:
  explicit SlotWriter(void* slots) : at_(static_cast<char*>(slots)) {}
  void Put(std::int64_t slot) {
    std::memcpy(at_, &slot, sizeof(slot));
    at_ += sizeof(slot);
  }
  void Repeat(std::int64_t slot, std::size_t times) {
    for (; times > 0; --times)
      Put(slot);
  }

 private:
  char* at_;
};

std::int64_t SlotOf(std::int64_t block, std::int64_t offset, std::int64_t block_tokens,
                    bool asked) {
  if (block < 0) return kPaddingSlot;
  if (offset < 0 || offset >= block_tokens || block >= kNoSlot / block_tokens) return kNoSlot;
  const std::int64_t slot = block * block_tokens + offset;
  return asked ? slot : NotAsked(slot);
}

// Entry i of an array whose entries have 4 or 8 bytes.
std::int64_t IntegerAt(const void* array, std::size_t i, std::int32_t bytes) {
  return bytes == sizeof(std::int32_t) ? At<std::int32_t>(array, i) : At<std::int64_t>(array, i);
}

void ExpandPairs(const PairRows& rows, SlotWriter slots) {
  for (const std::int32_t bytes : {rows.index_bytes, rows.BytesOfPosition()})
    if (bytes != 4 && bytes != 8) return slots.Repeat(kNoSlot, rows.num_rows);
  for (std::size_t i = 0; i < rows.num_rows; ++i) {
    slots.Put(SlotOf(IntegerAt(rows.block_idx, i, rows.index_bytes),
                     IntegerAt(rows.local_position, i, rows.BytesOfPosition()), rows.block_tokens,
                     rows.asked == nullptr || rows.asked[i] != 0));
  }
}

void ExpandTable(const TableRows& rows, SlotWriter slots) {
  for (std::size_t r = 0; r < rows.num_requests; ++r) {
    const std::int64_t first = At<std::int32_t>(rows.num_computed_tokens, r);
    const std::int64_t end = first + At<std::int32_t>(rows.num_scheduled_tokens, r);
    const bool asked = rows.asked == nullptr || rows.asked[r] != 0;
    for (std::int64_t position = first; position < end; ++position) {
      const std::int64_t entry =
          position < 0 || rows.block_tokens <= 0 ? -1 : position / rows.block_tokens;
      if (entry < 0 || static_cast<std::uint64_t>(entry) >= rows.table_stride) {
        slots.Put(kNoSlot);
        continue;
      }
      const auto at = r * rows.table_stride + static_cast<std::size_t>(entry);
      slots.Put(SlotOf(At<std::int32_t>(rows.block_table, at), position % rows.block_tokens,
                       rows.block_tokens, asked));
    }
  }
  slots.Repeat(kPaddingSlot, rows.num_padding);
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

std::string_view EventName(EventType type) {
  switch (type) {
    case EventType::kBind:
      return "Bind";
    case EventType::kRetain:
      return "Retain";
    case EventType::kRelease:
      return "Release";
    case EventType::kSeal:
      return "Seal";
    case EventType::kCopy:
      return "Copy";
    case EventType::kMove:
      return "Move";
    case EventType::kTruncate:
      return "Truncate";
    case EventType::kReset:
      return "Reset";
  }
  return "unknown event";
}

std::string DescribeEvent(const Event& event) {
  const BlockKey key = event.GetKey();
  const auto key_text = [&key] {
    return absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(key.bytes.data()), key.size));
  };
  const std::string name(EventName(event.type));
  switch (event.type) {
    case EventType::kBind:
      if (key.empty()) return absl::StrCat(name, "(block ", event.block, ")");
      return absl::StrCat(name, "(block ", event.block, ", key ", key_text(), ")");
    case EventType::kRetain:
    case EventType::kRelease:
      return absl::StrCat(name, "(block ", event.block, ")");
    case EventType::kSeal:
      return absl::StrCat(name, "(block ", event.block, ", ",
                          key.empty() ? "no key" : "key " + key_text(), ", step ", event.step, ")");
    case EventType::kCopy:
      return absl::StrCat(
          name, "(block ", event.src, " -> ", event.block, ", ",
          event.rows == Event::kAllRows ? "all rows" : absl::StrCat(event.rows, " rows"), ")");
    case EventType::kMove:
      return absl::StrCat(name, "(block ", event.src, " -> ", event.block,
                          event.more != 0 ? ", with the next" : "", ")");
    case EventType::kTruncate:
      return absl::StrCat(name, "(block ", event.block, ", from row ", event.rows, ", step ",
                          event.step, ")");
    case EventType::kReset:
      return name;
  }
  return absl::StrCat(name, " ", static_cast<int>(event.type));
}

void AppendSlots(std::span<const BlockId> blocks, std::int32_t block_tokens, std::int64_t first,
                 std::int64_t last, bool asked, std::vector<std::int64_t>& slots) {
  const std::int64_t end = std::min(last, static_cast<std::int64_t>(blocks.size()) * block_tokens);
  for (std::int64_t row = first; row < end; ++row) {
    const BlockId block = blocks[static_cast<std::size_t>(row / block_tokens)];
    const std::int64_t slot = std::int64_t{block.value()} * block_tokens + row % block_tokens;
    slots.push_back(asked ? slot : NotAsked(slot));
  }
}

WAYMARK_STEP_PATH std::size_t NumRows(const StepBatch& batch) {
  if (batch.pairs != nullptr) return batch.pairs->num_rows;
  if (batch.table == nullptr) return batch.num_slots;
  std::size_t rows = batch.table->num_padding;
  for (std::size_t r = 0; r < batch.table->num_requests; ++r) {
    rows += static_cast<std::size_t>(
        std::max(At<std::int32_t>(batch.table->num_scheduled_tokens, r), 0));
  }
  return rows;
}

void ExpandSlots(const StepBatch& batch, void* slots) {
  const SlotWriter writer(slots);
  if (batch.pairs != nullptr) return ExpandPairs(*batch.pairs, writer);
  if (batch.table != nullptr) return ExpandTable(*batch.table, writer);
  if (batch.num_slots > 0) {
    std::memcpy(slots, batch.slots, batch.num_slots * sizeof(std::int64_t));
  }
}

}  // namespace waymark
