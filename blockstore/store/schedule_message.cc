#include "blockstore/store/schedule_message.h"
#include "blockstore/step_path.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "blockstore/byte_io.h"
#include "blockstore/store/event_code.h"
#include "xxhash.h"

namespace waymark {
namespace {

constexpr char kMagic[4] = {'W', 'M', 'S', '1'};

// The first 56 bytes of a message. docs/schedule-message.md defines the fields.
struct Header {
  char magic[4];
  std::uint32_t bytes;
  std::uint64_t epoch;
  std::uint64_t sequence;
  std::uint64_t step;
  std::uint64_t version;
  std::uint32_t num_events;
  std::uint32_t num_snapshots;
  std::uint32_t num_forgets;
  std::uint32_t num_blocks;
};
static_assert(sizeof(Header) == 56);

// The first 4 bytes of an item: those of an event, or with one of these kinds and detail 0.
using ItemHead = EventHead;
constexpr std::uint8_t kSnapshotItem = 9;
constexpr std::uint8_t kForgetItem = 10;

constexpr std::size_t kCheckBytes = sizeof(std::uint64_t);
constexpr std::size_t kEmptyBytes = sizeof(Header) + kCheckBytes;
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;
constexpr std::size_t kSnapshotBytes = sizeof(ItemHead) + 4 + 3 * 8;  // and 4 per block
constexpr std::size_t kForgetBytes = sizeof(ItemHead) + 8;
constexpr std::uint64_t kNoStep = std::numeric_limits<std::uint64_t>::max();

WAYMARK_STEP_PATH std::uint64_t CheckOf(std::span<const std::uint8_t> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

// ---- the rules, which the writer and the parser share

// Where a number was found: "events[3]", "schedule message: items[3]".
struct Place {
  const char* list;
  std::size_t index;

  template <class Value>
  [[nodiscard]] absl::Status Broken(absl::string_view field, absl::string_view rule,
                                    Value value) const {
    return absl::InvalidArgumentError(
        absl::StrCat(list, "[", index, "]", field, " must be ", rule, "; it is ", value));
  }
};

absl::Status CheckBlock(std::int32_t block, absl::string_view field, const ScheduleLimits& limits,
                        const Place& place) {
  if (block < limits.num_blocks) return absl::OkStatus();
  return place.Broken(
      field, absl::StrCat("negative (null) or less than num_blocks, ", limits.num_blocks), block);
}

// In a message without a step a Seal may name any step.
WAYMARK_STEP_PATH EventLimits LimitsOf(const ScheduleLimits& limits, StepId step) {
  return {limits.num_blocks, limits.block_tokens, step.valid() ? step.value() : kNoStep - 1};
}

// The error of events that broke a rule, with the limit of that rule. Event 0 is at `first`.
absl::Status EventError(StepCode code, const EventLimits& limits, const Place& first) {
  code.index += first.index;
  const absl::Status status = code.ToStatus(first.list);
  std::string limit;
  switch (code.rule) {
    case StepRule::kBlockOutOfRange:
    case StepRule::kSrcOutOfRange:
      limit = absl::StrCat("; num_blocks is ", limits.num_blocks);
      break;
    case StepRule::kRowsOutOfRange:
      limit = absl::StrCat("; block_tokens is ", limits.block_tokens);
      break;
    case StepRule::kSealStep:
      limit = absl::StrCat("; the latest step is ", limits.last_seal);
      break;
    default:
      break;
  }
  return absl::Status(status.code(), absl::StrCat(status.message(), limit));
}

absl::Status CheckSnapshot(std::span<const BlockId> blocks, std::int64_t first, std::int64_t last,
                           const ScheduleLimits& limits) {
  const auto rows = static_cast<std::int64_t>(blocks.size()) * limits.block_tokens;
  if (first < 0 || first > last || last > rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rows [first, last) must satisfy 0 <= first <= last <= ", rows, " (", blocks.size(),
        " blocks of ", limits.block_tokens, " tokens); they are [", first, ", ", last, ")"));
  }
  // Without a branch per block: the lists are long.
  BlockId greatest;
  for (const BlockId block : blocks)
    greatest = std::max(greatest, block);
  if (greatest.value() >= limits.num_blocks) {
    const auto bad = std::find_if(blocks.begin(), blocks.end(), [&limits](BlockId block) {
      return block.value() >= limits.num_blocks;
    });
    const auto index = static_cast<std::size_t>(bad - blocks.begin());
    return CheckBlock(bad->value(), "", limits, {"blocks", index});
  }
  return absl::OkStatus();
}

absl::Status TooManySnapshots(const ScheduleLimits& limits, std::uint64_t value) {
  return absl::ResourceExhaustedError(
      absl::StrCat("schedule message: its snapshots must be at most max_snapshots, ",
                   limits.max_snapshots, "; it has ", value));
}

absl::Status TooManyBytes(const ScheduleLimits& limits, std::uint64_t value) {
  return absl::ResourceExhaustedError(
      absl::StrCat("schedule message: its bytes must be at most max_bytes, ", limits.max_bytes,
                   "; it has ", value));
}

WAYMARK_STEP_PATH absl::Status CheckStep(std::uint64_t step, std::uint64_t version,
                                         absl::string_view where) {
  if (step == kNoStep) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "step must be below 2^64 - 1; it is ", step));
  }
  if (step == 0 && version != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "version must be 0 without a step; it is ", version));
  }
  return absl::OkStatus();
}

// ---- parsing

template <class... Part>
absl::Status Bad(const Part&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("schedule message: ", parts...));
}

// Checks the bytes around the items. `body` is set to the bytes of the items.
WAYMARK_STEP_PATH absl::Status ParseFrame(std::span<const std::uint8_t> bytes,
                                          const ScheduleLimits& limits, Header& header,
                                          std::span<const std::uint8_t>& body) {
  if (bytes.size() > limits.max_bytes) return TooManyBytes(limits, bytes.size());
  if (bytes.size() < kEmptyBytes) {
    return Bad("it must have at least ", kEmptyBytes, " bytes; it has ", bytes.size());
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return Bad("it must begin with WMS1; it begins with ", int{bytes[0]}, " ", int{bytes[1]}, " ",
               int{bytes[2]}, " ", int{bytes[3]});
  }
  if (header.bytes != bytes.size()) {
    return Bad("bytes must be their number, ", bytes.size(), "; it is ", header.bytes);
  }
  body = bytes.subspan(sizeof(header), bytes.size() - kEmptyBytes);
  std::uint64_t check = 0;
  std::memcpy(&check, bytes.data() + bytes.size() - kCheckBytes, sizeof(check));
  const std::uint64_t computed = CheckOf(bytes.first(bytes.size() - kCheckBytes));
  if (check != computed) {
    return Bad("it is damaged: check must be ", absl::Hex(computed), "; it is ", absl::Hex(check));
  }
  if (header.epoch == 0) return Bad("epoch must not be 0; it is 0");
  if (header.sequence == 0) return Bad("sequence must be at least 1; it is 0");
  if (absl::Status status = CheckStep(header.step, header.version, "schedule message: ");
      !status.ok()) {
    return status;
  }
  if (header.num_snapshots > limits.max_snapshots) {
    return TooManySnapshots(limits, header.num_snapshots);
  }
  // No sum overflows: each count is below 2^32.
  const std::uint64_t least = std::uint64_t{header.num_events} * kMinEventBytes +
                              std::uint64_t{header.num_snapshots} * kSnapshotBytes +
                              std::uint64_t{header.num_forgets} * kForgetBytes +
                              std::uint64_t{header.num_blocks} * sizeof(std::int32_t);
  if (least > body.size()) {
    return Bad("its counts must fit the ", body.size(), " bytes of its items; ", header.num_events,
               " events, ", header.num_snapshots, " snapshots, ", header.num_forgets,
               " forgets and ", header.num_blocks, " blocks take at least ", least);
  }
  return absl::OkStatus();
}

class ItemParser {
 public:
  // REQUIRES: `header` has passed ParseFrame.
  ItemParser(const Header& header, std::span<const std::uint8_t> items,
             const ScheduleLimits& limits, ScheduleMessage& message)
      : header_(header), reader_(items), limits_(limits), message_(message) {}

  absl::Status Parse() {
    message_.items.reserve(2 * (std::size_t{header_.num_snapshots} + header_.num_forgets) + 1);
    message_.events.reserve(header_.num_events);
    message_.blocks.reserve(header_.num_blocks);
    for (; reader_.left() > 0; ++index_) {
      if (absl::Status status = ParseItem(); !status.ok()) return status;
    }
    if (absl::Status status = EndEvents(); !status.ok()) return status;
    return CheckCounts(true);
  }

 private:
  [[nodiscard]] Place Here() const { return {"schedule message: items", index_}; }

  [[nodiscard]] absl::Status CutOff() const {
    return Bad("items[", index_, "] must be complete; it is cut off");
  }

  absl::Status ParseItem() {
    const auto head = reader_.Get<ItemHead>();
    if (!reader_.ok()) return CutOff();
    if (head.zero != 0) return Here().Broken(".zero", "0", head.zero);
    const auto type = static_cast<EventType>(head.kind);
    const std::uint8_t most = MaxDetail(head.kind);
    if (head.detail > most) {
      return Here().Broken(".detail",
                           absl::StrCat("at most ", most, " in an item of kind ", head.kind),
                           int{head.detail});
    }
    absl::Status status;
    if (type >= EventType::kBind && type <= EventType::kReset) {
      ParseEvent(head);
    } else if (head.kind == kSnapshotItem || head.kind == kForgetItem) {
      status = EndEvents();
      if (status.ok()) status = head.kind == kSnapshotItem ? ParseSnapshot() : ParseForget();
    } else {
      return Here().Broken(".kind", "in [1, 10]", int{head.kind});
    }
    if (!reader_.ok()) return CutOff();
    return status.ok() ? CheckCounts(false) : status;
  }

  void ParseEvent(ItemHead head) {
    const std::uint8_t* const rest = reader_.Take(EventBytes(head) - sizeof(head));
    if (rest == nullptr) return;
    if (first_event_ == message_.events.size()) first_event_item_ = index_;
    ReadEvent(rest - sizeof(head), message_.events.emplace_back());
  }

  // Ends a run of consecutive events, if there is one.
  absl::Status EndEvents() {
    const auto begin = static_cast<std::uint32_t>(first_event_);
    const auto end = static_cast<std::uint32_t>(message_.events.size());
    if (begin == end) return absl::OkStatus();
    first_event_ = end;
    message_.items.push_back({.begin = begin, .end = end});
    const EventLimits limits = LimitsOf(limits_, message_.step);
    const StepCode code =
        CheckEvents(message_.EventsOf(message_.items.back()), limits, message_.blocks);
    if (code.ok()) return absl::OkStatus();
    return EventError(code, limits, {Here().list, first_event_item_});
  }

  absl::Status ParseSnapshot() {
    ++num_snapshots_;
    const auto count = reader_.Get<std::uint32_t>();
    ScheduleItem item{.kind = ScheduleItem::Kind::kSnapshot};
    item.tag = reader_.Get<std::uint64_t>();
    item.first = reader_.Get<std::int64_t>();
    item.last = reader_.Get<std::int64_t>();
    const std::uint8_t* ids = reader_.Take(count, sizeof(BlockId));
    if (ids == nullptr) return absl::OkStatus();
    item.begin = static_cast<std::uint32_t>(message_.blocks.size());
    item.end = item.begin + count;
    message_.blocks.resize(item.end);
    if (count > 0) {
      std::memcpy(message_.blocks.data() + item.begin, ids, count * sizeof(BlockId));
    }
    message_.items.push_back(item);
    absl::Status status = CheckSnapshot(message_.BlocksOf(item), item.first, item.last, limits_);
    if (status.ok()) return status;
    return Bad("items[", index_, "].", status.message());
  }

  absl::Status ParseForget() {
    ++num_forgets_;
    message_.items.push_back(
        {.kind = ScheduleItem::Kind::kForget, .tag = reader_.Get<std::uint64_t>()});
    return absl::OkStatus();
  }

  // The counts of the header are those of the items; before the end, they are not exceeded.
  absl::Status CheckCounts(bool at_end) const {
    const auto check = [at_end](const char* name, std::uint64_t declared, std::uint64_t seen) {
      if (seen == declared || (seen < declared && !at_end)) return absl::OkStatus();
      return Bad(name, " must be the number in its items, which is ", seen,
                 at_end ? "" : " or more", "; it is ", declared);
    };
    absl::Status status = check("num_events", header_.num_events, message_.events.size());
    status.Update(check("num_snapshots", header_.num_snapshots, num_snapshots_));
    status.Update(check("num_forgets", header_.num_forgets, num_forgets_));
    status.Update(check("num_blocks", header_.num_blocks, message_.blocks.size()));
    return status;
  }

  const Header& header_;
  ByteReader reader_;
  const ScheduleLimits& limits_;
  ScheduleMessage& message_;
  std::size_t index_ = 0;             // of the item that is being parsed
  std::size_t first_event_ = 0;       // of the run of events, in message_.events
  std::size_t first_event_item_ = 0;  // the index of its item
  std::uint32_t num_snapshots_ = 0;
  std::uint32_t num_forgets_ = 0;
};

}  // namespace

absl::Status ScheduleLimits::Validate() const {
  const auto bad = [](const char* field, const char* rule, std::int64_t value) {
    return absl::InvalidArgumentError(
        absl::StrCat("ScheduleLimits.", field, " must be ", rule, "; it is ", value));
  };
  if (num_blocks < 1) return bad("num_blocks", "at least 1", num_blocks);
  if (block_tokens < 1) return bad("block_tokens", "at least 1", block_tokens);
  if (max_bytes < kEmptyBytes || max_bytes > kMaxMessageBytes) {
    return bad("max_bytes", "in [64, 2^30]", max_bytes);
  }
  return absl::OkStatus();
}

WAYMARK_STEP_PATH absl::StatusOr<ScheduleMessage> ParseScheduleMessage(
    std::span<const std::uint8_t> bytes, const ScheduleLimits& limits, ScheduleMessage memory) {
  if (absl::Status status = limits.Validate(); !status.ok()) return status;
  Header header;
  std::span<const std::uint8_t> items;
  if (absl::Status status = ParseFrame(bytes, limits, header, items); !status.ok()) return status;
  ScheduleMessage& message = memory;
  message.epoch = header.epoch;
  message.sequence = header.sequence;
  message.step = StepId(header.step);
  message.version = header.version;
  message.items.clear();
  message.events.clear();
  message.blocks.clear();
  if (absl::Status status = ItemParser(header, items, limits, message).Parse(); !status.ok()) {
    return status;
  }
  return std::move(message);
}

// ---- writing

absl::StatusOr<ScheduleWriter> ScheduleWriter::Create(const ScheduleLimits& limits,
                                                      std::uint64_t epoch,
                                                      std::uint64_t first_sequence) {
  if (absl::Status status = limits.Validate(); !status.ok()) return status;
  std::random_device random;
  while (epoch == 0)
    epoch = (std::uint64_t{random()} << 32) | random();
  return ScheduleWriter(limits, epoch, std::max<std::uint64_t>(first_sequence, 1));
}

WAYMARK_STEP_PATH absl::Status ScheduleWriter::Begin(StepId step, std::uint64_t version) {
  if (open_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Begin: message ", sequence_, " must be finished before another one is begun"));
  }
  if (absl::Status status = CheckStep(step.value(), version, ""); !status.ok()) return status;
  if (step.valid() && step < last_step_) {
    return absl::InvalidArgumentError(
        absl::StrCat("step must not be before the step of an earlier message, ", last_step_.value(),
                     "; it is ", step.value()));
  }
  if (step.valid()) last_step_ = step;
  step_ = step;
  version_ = version;
  num_events_ = num_snapshots_ = num_forgets_ = num_blocks_ = 0;
  size_ = sizeof(Header);
  bytes_.resize(std::max(bytes_.size(), kEmptyBytes));
  open_ = true;
  return absl::OkStatus();
}

WAYMARK_STEP_PATH absl::Status ScheduleWriter::Reserve(std::size_t least, std::size_t most) {
  if (!open_) return absl::FailedPreconditionError("a message must be begun first: call Begin");
  const std::size_t other = size_ + kCheckBytes;
  if (other + least > limits_.max_bytes) return TooManyBytes(limits_, other + least);
  if (other + most > bytes_.size()) bytes_.resize(std::max(other + most, 2 * bytes_.size()));
  return absl::OkStatus();
}

WAYMARK_STEP_PATH absl::Status ScheduleWriter::Report(std::span<const Event> events) {
  absl::Status status = Reserve(events.size() * kMinEventBytes, events.size() * kMaxEventBytes);
  if (!status.ok()) return status;
  const EventLimits limits = LimitsOf(limits_, step_);
  std::size_t bytes = 0;
  const StepCode code =
      EncodeEvents(events, limits, 0, move_blocks_, bytes_.data() + size_, &bytes);
  if (!code.ok()) return EventError(code, limits, {"events", 0});
  if (status = Reserve(bytes, bytes); !status.ok()) return status;
  size_ += bytes;
  num_events_ += static_cast<std::uint32_t>(events.size());
  return absl::OkStatus();
}

absl::Status ScheduleWriter::Snapshot(std::uint64_t tag, std::span<const BlockId> blocks,
                                      std::int64_t first, std::int64_t last) {
  if (absl::Status status = CheckSnapshot(blocks, first, last, limits_); !status.ok()) {
    return status;
  }
  const std::size_t bytes = kSnapshotBytes + blocks.size() * sizeof(BlockId);
  if (absl::Status status = Reserve(bytes, bytes); !status.ok()) return status;
  if (num_snapshots_ == limits_.max_snapshots) {
    return TooManySnapshots(limits_, std::uint64_t{num_snapshots_} + 1);
  }
  RawWriter writer(bytes_.data() + size_);
  writer.Put(ItemHead{kSnapshotItem, 0, 0});
  writer.Put(static_cast<std::uint32_t>(blocks.size()));
  writer.Put(tag);
  writer.Put(first);
  writer.Put(last);
  writer.PutBytes(blocks.data(), blocks.size() * sizeof(BlockId));
  size_ += bytes;
  num_snapshots_ += 1;
  num_blocks_ += static_cast<std::uint32_t>(blocks.size());
  return absl::OkStatus();
}

absl::Status ScheduleWriter::Forget(std::uint64_t tag) {
  if (absl::Status status = Reserve(kForgetBytes, kForgetBytes); !status.ok()) return status;
  RawWriter writer(bytes_.data() + size_);
  writer.Put(ItemHead{kForgetItem, 0, 0});
  writer.Put(tag);
  size_ += kForgetBytes;
  num_forgets_ += 1;
  return absl::OkStatus();
}

WAYMARK_STEP_PATH std::span<const std::uint8_t> ScheduleWriter::Finish() {
  if (!open_) return {};
  open_ = false;
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.bytes = static_cast<std::uint32_t>(size_ + kCheckBytes);
  header.epoch = epoch_;
  header.sequence = sequence_++;
  header.step = step_.value();
  header.version = version_;
  header.num_events = num_events_;
  header.num_snapshots = num_snapshots_;
  header.num_forgets = num_forgets_;
  header.num_blocks = num_blocks_;
  RawWriter(bytes_.data()).Put(header);
  RawWriter(bytes_.data() + size_).Put(CheckOf({bytes_.data(), size_}));
  return {bytes_.data(), size_ + kCheckBytes};
}

}  // namespace waymark
