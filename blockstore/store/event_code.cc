#include "blockstore/store/event_code.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/step_path.h"

namespace waymark {
namespace {

// Bit i: whether the events of kind i have a key: Bind and Seal.
constexpr std::uint64_t kKindsWithKey = 0b1'0010;

constexpr bool HasKey(EventType type) {
  return type == EventType::kBind || type == EventType::kSeal;
}

// Calls `field` with those fields of `event` that its kind has, in the order of the bytes.
template <class EventT, class Field>
constexpr void ForEachField(EventT& event, const Field& field) {
  const EventType type = event.type;
  if (type != EventType::kReset) field(event.block);
  if (type == EventType::kCopy || type == EventType::kMove) field(event.src);
  if (type == EventType::kCopy || type == EventType::kTruncate) field(event.rows);
  if (type == EventType::kSeal || type == EventType::kTruncate) field(event.step);
}

// The bytes of an event without its key, by kind.
constexpr auto kFixedBytes = [] {
  std::array<std::uint8_t, static_cast<std::size_t>(EventType::kReset) + 1> bytes{};
  for (std::size_t kind = 1; kind < bytes.size(); ++kind) {
    Event event;
    event.type = static_cast<EventType>(kind);
    std::size_t sum = sizeof(EventHead);
    ForEachField(event, [&sum](const auto& field) { sum += sizeof(field); });
    bytes[kind] = static_cast<std::uint8_t>(sum);
  }
  return bytes;
}();

EventHead HeadAt(const std::uint8_t* at) {
  EventHead head;
  std::memcpy(&head, at, sizeof(head));
  return head;
}

// The sizes that keys have in engines, as a few loads and stores.
void CopyKey(const std::uint8_t* from, std::size_t size, std::uint8_t* to) {
  if (size == 8) {
    std::memcpy(to, from, 8);
  } else if (size == 16) {
    std::memcpy(to, from, 16);
  } else if (size == 32) {
    std::memcpy(to, from, 32);
  } else {
    std::memcpy(to, from, size);
  }
}

// ---- the rules

bool BlockFits(std::int32_t block, const EventLimits& limits) {
  return block < limits.num_blocks;
}

bool KeyFits(const Event& event) {
  return event.key_size <= BlockKey::kMaxBytes;
}

bool SealFits(const Event& event, const EventLimits& limits) {
  return (event.type != EventType::kSeal) | (event.step <= limits.last_seal);
}

StepCode Broken(StepRule rule, std::int64_t value) {
  return {static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument), rule, 0, value};
}

// The rules of one event.
StepCode CheckEvent(const Event& event, const EventLimits& limits) {
  const EventType type = event.type;
  if (type < EventType::kBind || type > EventType::kReset) {
    return Broken(StepRule::kUnknownEvent, static_cast<std::int64_t>(type));
  }
  if (type == EventType::kReset) return {};
  if (!BlockFits(event.block, limits)) return Broken(StepRule::kBlockOutOfRange, event.block);
  if (!KeyFits(event)) return Broken(StepRule::kKeyTooLong, event.key_size);
  const bool copy = type == EventType::kCopy;
  if ((copy || type == EventType::kMove) && !BlockFits(event.src, limits)) {
    return Broken(StepRule::kSrcOutOfRange, event.src);
  }
  if (copy && event.src == event.block && event.block >= 0) {
    return Broken(StepRule::kSelfCopy, event.block);
  }
  if ((copy && event.rows != Event::kAllRows) || type == EventType::kTruncate) {
    if (event.rows < 0 || event.rows > limits.block_tokens) {
      return Broken(StepRule::kRowsOutOfRange, event.rows);
    }
  }
  if (!SealFits(event, limits)) {
    return Broken(StepRule::kSealStep, static_cast<std::int64_t>(event.step));
  }
  return {};
}

// The rules of a group of Moves: its last one is not joined with another event; no block is twice
// the source, or twice the destination.
StepCode CheckMoves(std::span<const Event> moves, std::vector<BlockId>& scratch) {
  StepCode code;
  if (moves.back().more != 0) {
    code = Broken(StepRule::kUnfinishedMove, moves.back().more);
    code.index = moves.size() - 1;
  }
  if (!code.ok() || moves.size() == 1) return code;
  const auto old_size = static_cast<std::ptrdiff_t>(scratch.size());
  for (const bool sources : {true, false}) {
    for (const Event& move : moves) {
      const std::int32_t block = sources ? move.src : move.block;
      if (block >= 0) scratch.emplace_back(block);
    }
    std::sort(scratch.begin() + old_size, scratch.end());
    const auto twice = std::adjacent_find(scratch.begin() + old_size, scratch.end());
    if (twice != scratch.end() && code.ok()) {
      code = Broken(StepRule::kDuplicateMove, twice->value());
    }
    scratch.resize(static_cast<std::size_t>(old_size));
  }
  return code;
}

// The rules of the first `*count` events, which take effect at once.
StepCode CheckFront(std::span<const Event> events, const EventLimits& limits,
                    std::vector<BlockId>& scratch, std::size_t* count) {
  *count = GroupSize(events);
  for (std::size_t i = 0; i < *count; ++i) {
    StepCode code = CheckEvent(events[i], limits);
    code.index = i;
    if (!code.ok()) return code;
  }
  if (events[0].type != EventType::kMove) return {};
  return CheckMoves(events.first(*count), scratch);
}

// Calls common(event) for each Bind, Retain, Release and Seal, which are nearly all events, and
// rare(event) for each other event, up to the first that breaks a rule. Among the common ones there
// is no branch, since their order cannot be predicted. `limits` is a copy, which stays in
// registers: what `common` writes could change anything that a reference refers to.
template <class Common, class Rare>
StepCode ForEachValid(std::span<const Event> events, const EventLimits limits,
                      std::vector<BlockId>& scratch, const Common& common, const Rare& rare) {
  for (std::size_t i = 0; i < events.size();) {
    const Event& event = events[i];
    const bool is_common = (event.type >= EventType::kBind) & (event.type <= EventType::kSeal);
    const bool block_fits = BlockFits(event.block, limits);
    const bool key_fits = KeyFits(event);
    const bool seal_fits = SealFits(event, limits);
    if (is_common & block_fits & key_fits & seal_fits) [[likely]] {
      common(event);
      ++i;
      continue;
    }
    std::size_t count = 0;
    StepCode code = CheckFront(events.subspan(i), limits, scratch, &count);
    code.index += i;
    if (!code.ok()) return code;
    for (const std::size_t end = i + count; i < end; ++i)
      rare(events[i]);
  }
  return {};
}

// ---- the bytes

// The greatest detail of an event of this kind.
std::uint8_t MaxDetail(std::uint8_t kind) {
  const auto type = static_cast<EventType>(kind);
  return HasKey(type) ? BlockKey::kMaxBytes : type == EventType::kMove ? 1 : 0;
}

// The bytes of an event with this head. REQUIRES: the kind is an EventType; detail <= MaxDetail.
std::size_t EventBytes(EventHead head) {
  const bool has_key = HasKey(static_cast<EventType>(head.kind));
  return std::size_t{kFixedBytes[head.kind]} + (has_key ? head.detail : 0);
}

// Reads the event at `at`, whose EventBytes are there, into a new Event, and returns their number.
std::size_t ReadEvent(const std::uint8_t* at, Event& event) {
  const EventHead head = HeadAt(at);
  event.type = static_cast<EventType>(head.kind);
  const std::uint8_t* from = at + sizeof(head);
  ForEachField(event, [&from](auto& field) {
    std::memcpy(&field, from, sizeof(field));
    from += sizeof(field);
  });
  if (!HasKey(event.type)) {
    event.more = head.detail;
    return static_cast<std::size_t>(from - at);
  }
  event.key_size = head.detail;
  CopyKey(from, head.detail, event.key.data());
  return static_cast<std::size_t>(from - at) + head.detail;
}

// Each returns the end of the event; bytes behind it, up to kMaxEventBytes, are overwritten.
std::uint8_t* PutCommon(const Event& event, std::uint8_t* out) {
  const auto kind = static_cast<std::uint64_t>(event.type);
  const std::uint64_t has_key = (kKindsWithKey >> kind) & 1;
  const std::uint64_t key_size = has_key * event.key_size;
  const std::uint64_t head = kind | (key_size << 8);
  const std::uint64_t is_seal = kind >> 2;  // of the kinds 1 ... 4
  RawWriter writer(out);
  writer.Put(head | (std::uint64_t{static_cast<std::uint32_t>(event.block)} << 32));
  writer.Put(event.step);
  std::uint8_t* const key = out + 8 + 8 * is_seal;
  std::memcpy(key, event.key.data(), BlockKey::kMaxBytes);
  return key + key_size;
}

std::uint8_t* PutRare(const Event& event, std::uint8_t* out) {
  const bool more = event.type == EventType::kMove && event.more != 0;
  const EventHead head = {static_cast<std::uint8_t>(event.type), std::uint8_t{more}, 0};
  RawWriter writer(out);
  writer.Put(head);
  ForEachField(event, [&writer](const auto& field) { writer.Put(field); });
  return out + EventBytes(head);
}

}  // namespace

StepCode CheckEvents(std::span<const Event> events, const EventLimits& limits,
                     std::vector<BlockId>& scratch) {
  const auto ignore = [](const Event&) {};
  return ForEachValid(events, limits, scratch, ignore, ignore);
}

WAYMARK_STEP_PATH StepCode EncodeEvents(std::span<const Event> events, const EventLimits& limits,
                                        std::vector<BlockId>& scratch, std::uint8_t* out,
                                        std::size_t* bytes) {
  std::uint8_t* at = out;
  const StepCode code = ForEachValid(
      events, limits, scratch, [&at](const Event& event) { at = PutCommon(event, at); },
      [&at](const Event& event) { at = PutRare(event, at); });
  if (code.ok()) *bytes = static_cast<std::size_t>(at - out);
  return code;
}

absl::Status CheckEventBytes(std::span<const std::uint8_t> bytes, absl::string_view list) {
  ByteReader reader(bytes);
  for (std::size_t i = 0; reader.left() > 0; ++i) {
    const auto broken = [&](absl::string_view rule, int value) {
      return absl::InvalidArgumentError(absl::StrCat(list, "[", i, "].", rule, "; it is ", value));
    };
    const auto head = reader.Get<EventHead>();
    if (reader.ok()) {
      if (head.kind < 1 || head.kind >= kFixedBytes.size()) {
        return broken("kind must be in [1, 8]", head.kind);
      }
      if (head.zero != 0) return broken("zero must be 0", head.zero);
      if (const int most = MaxDetail(head.kind); head.detail > most) {
        return broken(
            absl::StrCat("detail must be at most ", most, " in an event of kind ", int{head.kind}),
            head.detail);
      }
      (void)reader.Take(EventBytes(head) - sizeof(head));
    }
    if (!reader.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(list, "[", i, "] must be complete; it is cut off"));
    }
  }
  return absl::OkStatus();
}

bool EventReader::Next(std::vector<Event>& events) {
  events.clear();
  while (!rest_.empty() && (events.size() < kPiece || events.back().more != 0))
    rest_ = rest_.subspan(ReadEvent(rest_.data(), events.emplace_back()));
  return !events.empty();
}

}  // namespace waymark
