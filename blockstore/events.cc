#include "blockstore/events.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "blockstore/step_path.h"

namespace waymark {
namespace {

constexpr std::size_t kMagicBytes = 4;
constexpr char kMagic[] = "WMB1";
constexpr char kDeviceMagic[] = "WMB2";
constexpr std::size_t kHeaderBytes = kMagicBytes + 4 * sizeof(std::uint64_t);

static_assert(std::endian::native == std::endian::little,
              "arrays of events and slots are written as they lie in memory");
static_assert(offsetof(Event, type) == 0 && offsetof(Event, key_size) == 2 &&
                  offsetof(Event, more) == 3 && offsetof(Event, block) == 4 &&
                  offsetof(Event, src) == 8 && offsetof(Event, rows) == 12 &&
                  offsetof(Event, step) == 16 && offsetof(Event, key) == 24,
              "an event is written as it lies in memory");

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

bool KnownType(EventType type) {
  return type >= EventType::kBind && type <= EventType::kReset;
}

// The event with unused flags and key bytes set to 0, so that equal batches have equal bytes and
// every batch that the store accepts can be read back.
Event Canonical(Event event) {
  event.more = event.type == EventType::kMove && event.more != 0 ? 1 : 0;
  for (std::size_t i = event.key_size; i < event.key.size(); ++i)
    event.key[i] = 0;
  return event;
}

absl::Status BadEvent(std::size_t index, const char* field, const char* rule, std::uint64_t value) {
  return absl::InvalidArgumentError(
      absl::StrCat("batch: events[", index, "].", field, " must be ", rule, "; it is ", value));
}

absl::Status CheckEvent(const Event& event, std::size_t index) {
  if (!KnownType(event.type)) {
    return BadEvent(index, "type", "in [1, 8]", static_cast<std::uint64_t>(event.type));
  }
  if (event.key_size > BlockKey::kMaxBytes) {
    return BadEvent(index, "key_size", "at most 32", event.key_size);
  }
  if (event.more > (event.type == EventType::kMove ? 1 : 0)) {
    return BadEvent(index, "more", event.type == EventType::kMove ? "0 or 1" : "0 in all but Move",
                    event.more);
  }
  for (std::size_t i = event.key_size; i < event.key.size(); ++i) {
    if (event.key[i] != 0) return BadEvent(index, "key", "zero beyond its size", event.key[i]);
  }
  return absl::OkStatus();
}

// Element i of an array of T, which may be unaligned.
template <class T>
T At(const void* array, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array) + i * sizeof(T), sizeof(T));
  return value;
}

std::uint64_t ReadU64(const std::uint8_t* at) {
  return At<std::uint64_t>(at, 0);
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

void SerializeEvents(std::span<const Event> events, std::uint8_t* out) {
  for (const Event& event : events) {
    const Event canonical = Canonical(event);
    std::memcpy(out, &canonical, sizeof(canonical));
    out += sizeof(canonical);
  }
}

absl::StatusOr<std::vector<Event>> ParseEvents(std::span<const std::uint8_t> bytes) {
  if (bytes.size() % sizeof(Event) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("events: must be a multiple of ", sizeof(Event),
                                                   " bytes; there are ", bytes.size()));
  }
  std::vector<Event> events(bytes.size() / sizeof(Event));
  if (!events.empty()) std::memcpy(events.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (absl::Status status = CheckEvent(events[i], i); !status.ok()) return status;
  }
  return events;
}

const char* BatchMagic(const StepBatch& batch) {
  return batch.device_slots ? kDeviceMagic : kMagic;
}

std::size_t SerializedSize(const StepBatch& batch) {
  return kHeaderBytes + batch.num_events * sizeof(Event) + NumRows(batch) * sizeof(std::int64_t);
}

void SerializeBatch(const StepBatch& batch, std::string& out) {
  const std::size_t begin = out.size();
  out.resize(begin + SerializedSize(batch));
  char* at = out.data() + begin;
  std::memcpy(at, BatchMagic(batch), kMagicBytes);
  at += kMagicBytes;
  for (const std::uint64_t field :
       {batch.step, batch.version, static_cast<std::uint64_t>(batch.num_events),
        static_cast<std::uint64_t>(NumRows(batch))}) {
    std::memcpy(at, &field, sizeof(field));
    at += sizeof(field);
  }
  SerializeEvents(batch.event_span(), reinterpret_cast<std::uint8_t*>(at));
  at += batch.num_events * sizeof(Event);
  ExpandSlots(batch, at);
}

absl::StatusOr<OwnedStepBatch> ParseBatch(std::span<const std::uint8_t>& bytes) {
  if (bytes.size() < kHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch: must be at least ", kHeaderBytes, " bytes; there are ", bytes.size()));
  }
  const std::uint8_t* at = bytes.data();
  const bool device_slots = std::memcmp(at, kDeviceMagic, kMagicBytes) == 0;
  if (!device_slots && std::memcmp(at, kMagic, kMagicBytes) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch: must begin with \"WMB1\" or \"WMB2\"; it begins with 0x",
        absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(at), kMagicBytes))));
  }
  at += kMagicBytes;
  OwnedStepBatch batch;
  batch.device_slots = device_slots;
  batch.step = ReadU64(at);
  batch.version = ReadU64(at + 8);
  const std::uint64_t num_events = ReadU64(at + 16);
  const std::uint64_t num_slots = ReadU64(at + 24);
  at += 32;

  // Checks the counts against the bytes that are left before allocating.
  const std::size_t room = bytes.size() - kHeaderBytes;
  if (num_events > room / sizeof(Event)) {
    return absl::InvalidArgumentError(absl::StrCat("batch: num_events must fit the ", room,
                                                   " bytes behind the header; it is ", num_events));
  }
  const std::size_t events_bytes = static_cast<std::size_t>(num_events) * sizeof(Event);
  if (num_slots > (room - events_bytes) / sizeof(std::int64_t)) {
    return absl::InvalidArgumentError(absl::StrCat("batch: num_slots must fit the ",
                                                   room - events_bytes,
                                                   " bytes behind the events; it is ", num_slots));
  }
  absl::StatusOr<std::vector<Event>> events = ParseEvents({at, events_bytes});
  if (!events.ok()) return events.status();
  batch.events = *std::move(events);
  at += events_bytes;
  batch.slots.resize(static_cast<std::size_t>(num_slots));
  const std::size_t slots_bytes = batch.slots.size() * sizeof(std::int64_t);
  if (num_slots > 0) std::memcpy(batch.slots.data(), at, slots_bytes);
  bytes = bytes.subspan(kHeaderBytes + events_bytes + slots_bytes);
  return batch;
}

}  // namespace waymark
