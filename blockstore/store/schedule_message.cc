#include "blockstore/store/schedule_message.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "blockstore/byte_io.h"
#include "blockstore/step_path.h"
#include "blockstore/store/event_code.h"
#include "blockstore/store/log_records.h"
#include "xxhash.h"

namespace waymark {
namespace {

constexpr char kMagic[4] = {'W', 'M', 'S', '2'};

// The first bytes of a message. docs/internals/schedule-message.md defines the fields.
struct Header {
  char magic[4];
  std::uint32_t bytes;
  std::uint64_t epoch;
  std::uint64_t sequence;
};
static_assert(sizeof(Header) == 24);

constexpr std::size_t kCheckBytes = sizeof(std::uint64_t);
constexpr std::size_t kEmptyBytes = sizeof(Header) + kCheckBytes;
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;
constexpr std::uint64_t kNoStep = std::numeric_limits<std::uint64_t>::max();
constexpr absl::string_view kMessage = "schedule message: ";

WAYMARK_STEP_PATH std::uint64_t CheckOf(std::span<const std::uint8_t> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

template <class... Part>
absl::Status Bad(const Part&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// ---- the rules, which the writer and the reader share

// The error of events that broke a rule, with the limit of that rule.
absl::Status EventError(const StepCode& code, const EventLimits& limits) {
  const absl::Status status = code.ToStatus("events");
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

absl::Status TooManySnapshots(const ScheduleLimits& limits, std::uint64_t value) {
  return absl::ResourceExhaustedError(absl::StrCat(kMessage,
                                                   "its snapshots must be at most max_snapshots, ",
                                                   limits.max_snapshots, "; it has ", value));
}

absl::Status TooManyBytes(const ScheduleLimits& limits, std::uint64_t value) {
  return absl::ResourceExhaustedError(absl::StrCat(
      kMessage, "its bytes must be at most max_bytes, ", limits.max_bytes, "; it has ", value));
}

// ---- reading

// Checks the records of one message, one by one.
class RecordChecker {
 public:
  RecordChecker(const ScheduleLimits& limits, std::uint64_t last_seal, ScheduleScratch& scratch)
      : limits_(limits),
        events_{limits.num_blocks, limits.block_tokens, last_seal},
        scratch_(scratch) {}

  absl::Status CheckAll(std::span<const std::uint8_t> records) {
    for (; !records.empty(); ++index_) {
      const auto& head = reinterpret_cast<const RecordHeader&>(*records.data());
      if (records.size() < sizeof(head) || head.bytes > records.size()) {
        return Broken(" must be complete; it is cut off");
      }
      if (head.flags != 0) return Broken(".flags must be 0; it is ", head.flags);
      bytes_ = records.first(head.bytes);
      if (absl::Status status = CheckOne(head); !status.ok()) return status;
      records = records.subspan(head.bytes);
    }
    return absl::OkStatus();
  }

 private:
  template <class... Part>
  [[nodiscard]] absl::Status Broken(const Part&... parts) const {
    return Bad(kMessage, "records[", index_, "]", parts...);
  }
  [[nodiscard]] bool Has(std::size_t bytes) const { return bytes_.size() >= bytes; }
  template <class Record>
  [[nodiscard]] const Record& As() const {
    return reinterpret_cast<const Record&>(*bytes_.data());
  }
  // Behind the record's struct there are `bytes`, and zeros up to the next multiple of 8.
  template <class Record>
  [[nodiscard]] absl::Status CheckSize(std::uint64_t bytes) const {
    const std::uint64_t size = sizeof(Record) + bytes;
    if (bytes > bytes_.size() || RoundUpRecord(size) != bytes_.size()) {
      return Broken(".bytes must be that of its fields, rounded up to a multiple of 8; it is ",
                    bytes_.size());
    }
    for (const std::uint8_t byte : bytes_.subspan(size))
      if (byte != 0) return Broken(" must end with zeros; one is ", int{byte});
    return absl::OkStatus();
  }

  absl::Status CheckOne(const RecordHeader& head) {
    std::size_t least = sizeof(ForgetRecord);
    if (head.kind == RecordKind::kSchedule) least = sizeof(ScheduleRecord);
    if (head.kind == RecordKind::kSnapshot) least = sizeof(SnapshotRecord);
    if (!Has(least)) return Broken(".bytes must be at least ", least, "; it is ", head.bytes);
    switch (head.kind) {
      case RecordKind::kSchedule:
        return CheckSchedule();
      case RecordKind::kEvents:
        return CheckEvents();
      case RecordKind::kSnapshot:
        return CheckSnapshot();
      case RecordKind::kForget:
        return CheckSize<ForgetRecord>(0);
      default:
        return Broken(".kind must be that of a schedule, events, a snapshot or a forget; it is ",
                      static_cast<int>(head.kind));
    }
  }

  absl::Status CheckSchedule() {
    const std::uint64_t step = As<ScheduleRecord>().step;
    if (index_ != 0) return Broken(" is of a schedule, which must be the first record");
    if (step == 0 || step == kNoStep) {
      return Broken(".step must be in [1, 2^64 - 2]; it is ", step);
    }
    events_.last_seal = step;
    return CheckSize<ScheduleRecord>(0);
  }

  absl::Status CheckEvents() {
    const auto& record = As<EventsRecord>();
    if (absl::Status status = CheckSize<EventsRecord>(record.event_bytes); !status.ok()) {
      return status;
    }
    if (absl::Status status = CheckEventBytes(record.events(), "events"); !status.ok()) {
      return Broken(".", status.message());
    }
    EventReader reader(record.events());
    for (std::size_t first = 0; reader.Next(scratch_.events); first += scratch_.events.size()) {
      StepCode code = waymark::CheckEvents(scratch_.events, events_, scratch_.blocks);
      code.index += first;
      if (!code.ok()) return Broken(".", EventError(code, events_).message());
    }
    return absl::OkStatus();
  }

  absl::Status CheckSnapshot() {
    const auto& record = As<SnapshotRecord>();
    if (absl::Status status = CheckSize<SnapshotRecord>(4 * std::uint64_t{record.num_blocks});
        !status.ok()) {
      return status;
    }
    if (record.state != nullptr) return Broken(".ticket must be 0");
    if (++snapshots_ > limits_.max_snapshots) return TooManySnapshots(limits_, snapshots_);
    const std::int64_t tokens = limits_.block_tokens;
    const std::int64_t end = std::int64_t{record.skipped} + record.num_blocks;
    if (end > limits_.max_bytes / 4) {
      return TooManyBytes(limits_, 4 * static_cast<std::uint64_t>(end));
    }
    const bool none = record.first == record.last;
    // The first line also keeps the sums of the others from overflowing.
    if (record.first < 0 || record.first > record.last || record.last > end * tokens ||
        (record.last + tokens - 1) / tokens != end ||
        (none ? record.num_blocks != 0 : record.first / tokens != record.skipped)) {
      return Broken(": its blocks must be those of its rows; rows [", record.first, ", ",
                    record.last, "), ", record.num_blocks, " blocks from block ", record.skipped);
    }
    std::uint32_t skipped = 0;
    const auto blocks =
        BlocksOfRows(record.blocks(), 0, record.num_blocks * tokens, limits_, &skipped);
    return blocks.ok() ? absl::OkStatus() : Broken(".", blocks.status().message());
  }

  const ScheduleLimits& limits_;
  EventLimits events_;
  ScheduleScratch& scratch_;
  std::span<const std::uint8_t> bytes_;  // of the record that is checked
  std::size_t index_ = 0;                // its number
  std::uint32_t snapshots_ = 0;
};

}  // namespace

absl::Status ScheduleLimits::Validate() const {
  const auto bad = [](const char* field, const char* rule, std::int64_t value) {
    return Bad("ScheduleLimits.", field, " must be ", rule, "; it is ", value);
  };
  if (num_blocks < 1) return bad("num_blocks", "at least 1", num_blocks);
  if (block_tokens < 1) return bad("block_tokens", "at least 1", block_tokens);
  if (max_bytes < 64 || max_bytes > kMaxMessageBytes) {
    return bad("max_bytes", "in [64, 2^30]", max_bytes);
  }
  return absl::OkStatus();
}

WAYMARK_STEP_PATH absl::StatusOr<std::span<const BlockId>> BlocksOfRows(
    std::span<const BlockId> blocks, std::int64_t first, std::int64_t last,
    const ScheduleLimits& limits, std::uint32_t* skipped) {
  const std::int64_t tokens = limits.block_tokens;
  const auto rows = static_cast<std::int64_t>(blocks.size()) * tokens;
  if (first < 0 || first > last || last > rows) {
    return Bad("rows [first, last) must satisfy 0 <= first <= last <= ", rows, " (", blocks.size(),
               " blocks of ", tokens, " tokens); they are [", first, ", ", last, ")");
  }
  const auto end = static_cast<std::size_t>((last + tokens - 1) / tokens);
  const std::size_t begin = first == last ? end : static_cast<std::size_t>(first / tokens);
  *skipped = static_cast<std::uint32_t>(begin);
  const std::span<const BlockId> needed = blocks.subspan(begin, end - begin);
  // Without a branch per block: the lists are long.
  BlockId greatest;
  for (const BlockId block : needed)
    greatest = std::max(greatest, block);
  if (greatest.value() < limits.num_blocks) return needed;
  const auto bad = std::find_if(needed.begin(), needed.end(), [&limits](BlockId block) {
    return block.value() >= limits.num_blocks;
  });
  return Bad("blocks[", begin + static_cast<std::size_t>(bad - needed.begin()),
             "] must be negative (null) or less than num_blocks, ", limits.num_blocks, "; it is ",
             bad->value());
}

WAYMARK_STEP_PATH absl::Status ParseScheduleFrame(std::span<const std::uint8_t> bytes,
                                                  const ScheduleLimits& limits,
                                                  ScheduleFrame& frame) {
  if (absl::Status status = limits.Validate(); !status.ok()) return status;
  if (bytes.size() > limits.max_bytes) return TooManyBytes(limits, bytes.size());
  if (bytes.size() < kEmptyBytes) {
    return Bad(kMessage, "it must have at least ", kEmptyBytes, " bytes; it has ", bytes.size());
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return Bad(kMessage, "it must begin with WMS2; it begins with ", bytes[0], " ", bytes[1], " ",
               bytes[2], " ", bytes[3]);
  }
  if (header.bytes != bytes.size()) {
    return Bad(kMessage, "bytes must be their number, ", bytes.size(), "; it is ", header.bytes);
  }
  std::uint64_t check = 0;
  std::memcpy(&check, bytes.data() + bytes.size() - kCheckBytes, sizeof(check));
  const std::uint64_t computed = CheckOf(bytes.first(bytes.size() - kCheckBytes));
  if (check != computed) {
    return Bad(kMessage, "it is damaged: check must be ", absl::Hex(computed), "; it is ",
               absl::Hex(check));
  }
  if (header.epoch == 0) return Bad(kMessage, "epoch must not be 0; it is 0");
  if (header.sequence == 0) return Bad(kMessage, "sequence must be at least 1; it is 0");
  frame = {header.epoch, header.sequence,
           bytes.subspan(sizeof(header), bytes.size() - kEmptyBytes)};
  return absl::OkStatus();
}

WAYMARK_STEP_PATH absl::Status CheckScheduleRecords(std::span<const std::uint8_t> records,
                                                    const ScheduleLimits& limits,
                                                    std::uint64_t last_seal,
                                                    ScheduleScratch& scratch) {
  return RecordChecker(limits, last_seal, scratch).CheckAll(records);
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
  if (step.value() == kNoStep) return Bad("step must be below 2^64 - 1; it is ", step.value());
  if (!step.valid() && version != 0) {
    return Bad("version must be 0 without a step; it is ", version);
  }
  if (step.valid() && step < last_step_) {
    return Bad("step must not be before the step of an earlier message, ", last_step_.value(),
               "; it is ", step.value());
  }
  if (step.valid()) last_step_ = step;
  step_ = step;
  num_snapshots_ = 0;
  tags_.clear();
  size_ = sizeof(Header);
  bytes_.resize(std::max(bytes_.size(), kEmptyBytes + sizeof(ScheduleRecord)));
  open_ = true;
  if (step.valid()) Put(ScheduleRecord{.step = step.value(), .version = version});
  return absl::OkStatus();
}

WAYMARK_STEP_PATH absl::Status ScheduleWriter::Reserve(std::size_t least, std::size_t most) {
  if (!open_) return absl::FailedPreconditionError("a message must be begun first: call Begin");
  const std::size_t other = size_ + kCheckBytes;
  if (other + least > limits_.max_bytes) return TooManyBytes(limits_, other + least);
  if (other + most > bytes_.size()) bytes_.resize(std::max(other + most, 2 * bytes_.size()));
  return absl::OkStatus();
}

template <class Record>
WAYMARK_STEP_PATH void ScheduleWriter::Put(Record record, std::span<const std::uint8_t> tail) {
  const std::size_t bytes = RoundUpRecord(sizeof(record) + tail.size());
  record.header = {static_cast<std::uint32_t>(bytes), Record::kKind, 0};
  std::uint8_t* const at = bytes_.data() + size_;
  std::memset(at + bytes - 8, 0, 8);
  RawWriter writer(at);
  writer.Put(record);
  writer.PutBytes(tail.data(), tail.size());
  size_ += bytes;
}

WAYMARK_STEP_PATH absl::Status ScheduleWriter::Report(std::span<const Event> events) {
  const std::size_t most = sizeof(EventsRecord) + RoundUpRecord(events.size() * kMaxEventBytes);
  if (absl::Status status = Reserve(0, most); !status.ok() || events.empty()) return status;
  const EventLimits limits = {limits_.num_blocks, limits_.block_tokens,
                              step_.valid() ? step_.value() : kNoStep - 1};
  std::uint8_t* const out = bytes_.data() + size_;
  EventsRecord record;
  std::size_t event_bytes = 0;
  const StepCode code =
      EncodeEvents(events, limits, move_blocks_, out + sizeof(record), &event_bytes);
  if (!code.ok()) return EventError(code, limits);
  const std::size_t bytes = RoundUpRecord(sizeof(record) + event_bytes);
  if (absl::Status status = Reserve(bytes, bytes); !status.ok()) return status;
  record.header = {static_cast<std::uint32_t>(bytes), RecordKind::kEvents, 0};
  record.event_bytes = event_bytes;
  RawWriter(out).Put(record);
  std::memset(out + sizeof(record) + event_bytes, 0, bytes - sizeof(record) - event_bytes);
  size_ += bytes;
  return absl::OkStatus();
}

absl::Status ScheduleWriter::Snapshot(std::uint64_t tag, std::span<const BlockId> blocks,
                                      std::int64_t first, std::int64_t last) {
  SnapshotRecord record{.tag = tag, .first = first, .last = last};
  const auto needed = BlocksOfRows(blocks, first, last, limits_, &record.skipped);
  if (!needed.ok()) return needed.status();
  const auto at = std::lower_bound(tags_.begin(), tags_.end(), tag);
  if (at != tags_.end() && *at == tag) {
    return absl::AlreadyExistsError(absl::StrCat(
        "tag must be of no other snapshot of the message that was not forgotten; it is ", tag));
  }
  const std::size_t bytes = RoundUpRecord(sizeof(record) + needed->size_bytes());
  if (absl::Status status = Reserve(bytes, bytes); !status.ok()) return status;
  // As if the blocks before the rows were listed, which a flight does.
  if (record.skipped + needed->size() > limits_.max_bytes / 4) {
    return TooManyBytes(limits_, 4 * (record.skipped + needed->size()));
  }
  if (num_snapshots_ == limits_.max_snapshots) {
    return TooManySnapshots(limits_, std::uint64_t{num_snapshots_} + 1);
  }
  record.num_blocks = static_cast<std::uint32_t>(needed->size());
  Put(record, {reinterpret_cast<const std::uint8_t*>(needed->data()), needed->size_bytes()});
  num_snapshots_ += 1;
  tags_.insert(at, tag);
  return absl::OkStatus();
}

absl::Status ScheduleWriter::Forget(std::uint64_t tag) {
  if (absl::Status status = Reserve(sizeof(ForgetRecord), sizeof(ForgetRecord)); !status.ok()) {
    return status;
  }
  Put(ForgetRecord{.tag = tag});
  std::erase(tags_, tag);
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
  RawWriter(bytes_.data()).Put(header);
  RawWriter(bytes_.data() + size_).Put(CheckOf({bytes_.data(), size_}));
  return {bytes_.data(), size_ + kCheckBytes};
}

}  // namespace waymark
