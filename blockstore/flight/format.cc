#include "blockstore/flight/format.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "blockstore/byte_io.h"
#include "blockstore/digest.h"
#include "blockstore/invalid.h"
#include "blockstore/store/agreement.h"
#include "blockstore/store/event_code.h"
#include "xxhash.h"

namespace waymark {

FlightInfo FlightInfo::Of(const StoreOptions& options, FlightRows rows) {
  FlightInfo info;
  info.shape = options.shape;
  info.num_blocks = options.num_blocks;
  info.block_tokens = options.block_tokens != 0 ? options.block_tokens : options.shape.page_tokens;
  const std::int64_t pages_per_block =
      std::max(1, info.block_tokens / std::max(1, info.shape.page_tokens));
  info.num_pages = options.num_pages != 0
                       ? options.num_pages
                       : static_cast<std::uint32_t>(pages_per_block * options.num_blocks);
  info.spare_pages = options.spare_pages.value_or(info.num_pages);
  info.max_steps_in_flight = options.max_steps_in_flight;
  info.max_step_rows = options.max_step_rows;
  info.null_blocks = options.null_blocks;
  info.audit = options.audit;
  info.audit_threshold = options.audit_threshold.value_or(DefaultAuditThreshold(options.shape));
  info.key_seed = options.key_seed != 0 ? options.key_seed : DrawSeed();
  info.rows = rows;
  return info;
}

StoreOptions FlightInfo::ReplayOptions() const {
  StoreOptions options;
  options.shape = rows == FlightRows::kIds ? shape : flight::DigestShape(shape);
  options.num_blocks = num_blocks;
  options.block_tokens = block_tokens;
  options.num_pages = num_pages;
  options.spare_pages = spare_pages;
  options.null_blocks = null_blocks;
  options.max_steps_in_flight = max_steps_in_flight;
  options.max_step_rows = max_step_rows;
  options.landing = Landing::kCaller;
  options.audit = true;
  const double threshold = rows == FlightRows::kIds ? audit_threshold : audit_threshold / 2;
  // A store of an earlier version may have had one that chance reaches.
  if (threshold == 0 || threshold > ChanceAgreement(options.shape)) {
    options.audit_threshold = threshold;
  }
  options.key_seed = key_seed;
  return options;
}

namespace flight {
namespace {

std::uint32_t LowHalf(std::uint64_t hash) {
  return static_cast<std::uint32_t>(hash);
}

std::uint32_t HeadingCheck(const Heading& heading) {
  return LowHalf(XXH3_64bits(&heading, offsetof(Heading, heading_check)));
}

// A bijection of 32-bit words, different for each sketch byte.
std::uint32_t MixId(std::uint32_t id, std::uint32_t which) {
  std::uint32_t x = (id + 1) * 0x9e3779b1u + which * 0x85ebca6bu;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 13;
  return x;
}

}  // namespace

Heading MakeHeading(FlightRecordKind kind, std::uint16_t flags,
                    std::span<const std::uint8_t> payload) {
  Heading heading;
  heading.size = static_cast<std::uint32_t>(payload.size());
  heading.kind = static_cast<std::uint16_t>(kind);
  heading.flags = flags;
  heading.payload_check = LowHalf(XXH3_64bits(payload.data(), payload.size()));
  heading.heading_check = HeadingCheck(heading);
  return heading;
}

absl::StatusOr<bool> TakeRecord(std::span<const std::uint8_t>& bytes, Heading& heading,
                                std::span<const std::uint8_t>& payload) {
  if (bytes.size() < sizeof heading) return false;
  std::memcpy(&heading, bytes.data(), sizeof heading);
  if (heading.heading_check != HeadingCheck(heading)) {
    return Invalid("the heading's checksum is wrong");
  }
  if (heading.size > kMaxPayload) return Invalid("a record is too long");
  if (heading.size > bytes.size() - sizeof heading) return false;
  payload = bytes.subspan(sizeof heading, heading.size);
  if (heading.payload_check != LowHalf(XXH3_64bits(payload.data(), payload.size()))) {
    return Invalid("a record's checksum is wrong");
  }
  bytes = bytes.subspan(sizeof heading + heading.size);
  return true;
}

std::size_t RecordedRowBytes(const FlightInfo& info) {
  return info.rows == FlightRows::kIds ? info.shape.row_bytes() : kDigestRowBytes;
}

void DigestRow(const RoutingShape& shape, const std::uint8_t* row, std::uint8_t* out) {
  const std::uint64_t digest = RowDigest({row, shape.row_bytes()});
  std::memcpy(out, &digest, sizeof digest);
  const auto k = static_cast<std::size_t>(shape.top_k);
  for (std::uint32_t j = 0; j < kSketchBytes; ++j) {
    const std::size_t layer = j * static_cast<std::size_t>(shape.num_layers) / kSketchBytes;
    std::uint32_t least = std::numeric_limits<std::uint32_t>::max();
    for (std::size_t i = 0; i < k; ++i)
      least = std::min(least, MixId(shape.id_at(row, layer * k + i), j));
    // The low byte: the high bytes of a minimum are small numbers, equal too often by chance.
    out[sizeof digest + j] = static_cast<std::uint8_t>(least);
  }
}

RoutingShape DigestShape(const RoutingShape& shape) {
  return {.num_layers = kDigestRowBytes,
          .top_k = 1,
          .num_experts = 256,
          .page_tokens = shape.page_tokens,
          .layer_ids = {}};
}

// ---- records

namespace {

// A run of rows of a read: equal except for the step, which increases by `stride` per row.
struct Run {
  std::uint32_t length;
  std::uint8_t reason;  // ReasonByte
  Provenance provenance;
  std::uint16_t stride;
  std::uint64_t version;
  std::uint64_t step;
};
static_assert(sizeof(Run) == 24);

Run RunAt(std::span<const RowInfo> infos) {
  const RowInfo& front = infos[0];
  const auto same = [&](std::size_t i) {
    return infos[i].reason == front.reason && infos[i].cause == front.cause &&
           infos[i].provenance == front.provenance && infos[i].version == front.version;
  };
  Run run{1, ReasonByte(front.reason, front.cause), front.provenance, 0, front.version, front.step};
  if (infos.size() > 1 && same(1)) {
    const std::uint64_t stride = infos[1].step - front.step;
    if (stride <= 0xffff) run.stride = static_cast<std::uint16_t>(stride);
  }
  while (run.length < infos.size() && same(run.length) &&
         infos[run.length].step == front.step + std::uint64_t{run.length} * run.stride) {
    ++run.length;
  }
  return run;
}

template <class T>
concept List = requires(T list) {
  list.data();
};

// Writes a payload to `to`, and counts its bytes; null: counts them alone.
struct Writer {
  template <class... T>
  void operator()(const T&... fields) {
    (Put(fields), ...);
  }
  template <class T>
  void Put(const T& value) {
    if constexpr (List<T>) {
      Put(static_cast<std::uint32_t>(value.size()));
      Bytes(value.data(), std::span(value).size_bytes());
    } else {
      Bytes(&value, sizeof(value));
    }
  }
  void Bytes(const void* from, std::size_t size) {
    if (to != nullptr && size > 0) std::memcpy(to + bytes, from, size);
    bytes += size;
  }
  void Rest(std::span<const std::uint8_t> rest) { Bytes(rest.data(), rest.size()); }
  void Infos(std::span<const RowInfo> infos) {
    const std::size_t at = bytes;
    std::uint32_t runs = 0;
    for (Put(runs); !infos.empty(); ++runs) {
      const Run run = RunAt(infos);
      Put(run);
      infos = infos.subspan(run.length);
    }
    if (to != nullptr) std::memcpy(to + at, &runs, sizeof(runs));
  }
  std::uint8_t* to = nullptr;
  std::size_t bytes = 0;
};

// Reads a payload. After bytes that no writer writes, `wrong` says why, or from.done() is false.
struct Reader {
  template <class... T>
  void operator()(T&... fields) {
    (Get(fields), ...);
  }
  template <class T>
  void Get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = from.Get<std::uint8_t>();
      if (byte > 1) wrong = "a yes or no is neither";
      value = byte == 1;
    } else if constexpr (List<T>) {
      const auto count = from.Get<std::uint32_t>();
      const std::uint8_t* const at = from.Take(count, sizeof(value[0]));
      value.resize(from.ok() ? count : 0);
      if (!value.empty()) std::memcpy(value.data(), at, count * sizeof(value[0]));
    } else {
      value = from.Get<T>();
    }
  }
  void Rest(std::vector<std::uint8_t>& rest) {
    rest.assign(from.rest().begin(), from.rest().end());
    from = ByteReader({});
  }
  void Infos(std::vector<RowInfo>& infos) {
    infos.clear();
    const auto runs = from.Get<std::uint32_t>();
    for (std::uint32_t i = 0; i < runs && from.ok(); ++i) {
      const Run run = from.Get<Run>();
      // Each row has a digest behind the runs.
      if (infos.size() + run.length > from.left() / sizeof(std::uint64_t)) {
        wrong = "the runs of a read are longer than the read";
        return;
      }
      Reason reason{};
      Cause cause{};
      if (!FromReasonByte(run.reason, reason, cause) || reason == Reason::kNotTold ||
          static_cast<int>(run.provenance) >= static_cast<int>(Provenance::kUnknown)) {
        wrong = "a run of a read has an unknown reason or provenance";
        return;
      }
      for (std::uint32_t row = 0; row < run.length; ++row) {
        infos.push_back({run.step + std::uint64_t{row} * run.stride, run.version, reason,
                         run.provenance, cause});
      }
    }
  }
  ByteReader from;
  const char* wrong = nullptr;
};

// ---- payloads, each for writing and for reading

template <class Io, class Info>
void InfoFields(Io& io, Info& info) {
  io(info.shape.num_layers, info.shape.top_k, info.shape.num_experts, info.shape.page_tokens);
  io(info.num_blocks, info.block_tokens, info.num_pages, info.spare_pages);
  io(info.max_steps_in_flight, info.max_step_rows, info.rows, info.audit, info.audit_threshold);
  io(info.key_seed, info.shape.layer_ids, info.null_blocks);
}

// Of every other kind. False: there is no such kind.
template <class Io, class Record>
bool Fields(Io& io, Record& record) {
  switch (record.kind) {
    case FlightRecordKind::kCheckpoint:
    case FlightRecordKind::kEvents:
      io.Rest(record.bytes);
      return true;
    case FlightRecordKind::kStep:
      io(record.step, record.version, record.end, record.slots);
      return true;
    case FlightRecordKind::kLanded:
      io(record.step, record.begin, record.more, record.verdicts, record.bytes);
      return true;
    case FlightRecordKind::kSnapshot:
      io(record.read_id, record.first, record.last, record.blocks, record.last_step, record.keys);
      return true;
    case FlightRecordKind::kReleased:
      io(record.read_id);
      return true;
    case FlightRecordKind::kRead:
      io(record.read_id, record.begin);
      io.Infos(record.infos);
      io(record.digests);
      return true;
    case FlightRecordKind::kSchedule:
    case FlightRecordKind::kPoison:
      io(record.step, record.version);
      return true;
    case FlightRecordKind::kVoided:
      io(record.voided.by, record.voided.block, record.voided.ordinal, record.voided.read_id,
         record.voided.index_key, record.voided.row);
      return true;
    case FlightRecordKind::kClose:
      io(record.records, record.complete);
      return true;
    case FlightRecordKind::kInfo:
      break;
  }
  return false;
}

// What no writer writes, of fields that were read; null: nothing.
const char* FirstWrong(const FlightInfo& info, FlightRecord& record) {
  switch (record.kind) {
    case FlightRecordKind::kStep:
      if (record.end < StepEnd::kSubmit || record.end > StepEnd::kCancel) {
        return "the end of a step must be 1, 2 or 3";
      }
      return nullptr;
    case FlightRecordKind::kLanded: {
      const std::size_t width = RecordedRowBytes(info);
      const std::size_t rows = record.bytes.size() / width;
      if (record.verdicts.empty()) record.verdicts.assign(rows, Reason::kNone);
      if (record.bytes.size() % width != 0 || record.verdicts.size() != rows) {
        return "the length of landed rows is wrong";
      }
      if (record.begin < 0 ||
          record.begin > std::int64_t{info.max_step_rows} - static_cast<std::int64_t>(rows)) {
        return "more landed rows than a step may have";
      }
      for (const Reason verdict : record.verdicts) {
        if (static_cast<int>(verdict) >= kNumStoreReasons) {
          return "the verdict of a landed row is unknown";
        }
      }
      return nullptr;
    }
    case FlightRecordKind::kSnapshot:
      if (record.first < 0 || record.last < record.first) return "a snapshot's range is wrong";
      for (const BlockKey& key : record.keys) {
        if (key.size > BlockKey::kMaxBytes) return "a key of a snapshot is too long";
      }
      if (record.last_step == 0 && !record.keys.empty()) return "a snapshot has keys alone";
      return nullptr;
    case FlightRecordKind::kRead:
      if (record.begin < 0) return "a read begins below 0";
      if (record.digests.size() != record.infos.size()) return "the length of a read is wrong";
      return nullptr;
    case FlightRecordKind::kVoided:
      if (record.voided.by < VoidedPage::By::kBlock || record.voided.by > VoidedPage::By::kKey) {
        return "a voided page is named by 1, 2 or 3";
      }
      return nullptr;
    default:
      return nullptr;
  }
}

}  // namespace

std::string EncodeHead(const FlightInfo& info) {
  Writer counter;
  InfoFields(counter, info);
  std::string head(kMagic, sizeof kMagic);
  head.resize(sizeof kMagic + sizeof(Heading) + counter.bytes);
  auto* const at = reinterpret_cast<std::uint8_t*>(head.data()) + sizeof kMagic;
  Writer writer{at + sizeof(Heading)};
  InfoFields(writer, info);
  const Heading heading =
      MakeHeading(FlightRecordKind::kInfo, kFormatVersion, {writer.to, writer.bytes});
  std::memcpy(at, &heading, sizeof(heading));
  return head;
}

absl::StatusOr<FlightInfo> DecodeInfo(std::span<const std::uint8_t> payload) {
  Reader reader{ByteReader(payload)};
  FlightInfo info;
  InfoFields(reader, info);
  if (!reader.from.done()) return Invalid("flight head: its length is wrong");
  if (const absl::Status status = info.shape.Validate(); !status.ok()) {
    return Invalid("flight head: ", status.message());
  }
  const auto bad = [](const char* what, std::uint64_t value) {
    return Invalid("flight head: ", what, " is ", value);
  };
  if (info.rows != FlightRows::kDigests && info.rows != FlightRows::kIds) {
    return bad("kind of rows", static_cast<std::uint8_t>(info.rows));
  }
  if (reader.wrong != nullptr) return Invalid("flight head: ", reader.wrong);
  if (!(info.audit_threshold >= 0 && info.audit_threshold <= 1)) {
    return Invalid("flight head: audit_threshold is not in [0, 1]");
  }
  if (info.key_seed == 0) return bad("key_seed", 0);
  if (info.num_pages == 0) return bad("num_pages", 0);
  if (info.block_tokens <= 0 || info.block_tokens % info.shape.page_tokens != 0) {
    return bad("block_tokens", static_cast<std::uint64_t>(info.block_tokens));
  }
  return info;
}

std::size_t RecordBytes(const FlightEntry& entry) {
  Writer counter;
  Fields(counter, entry);
  return sizeof(Heading) + counter.bytes;
}

void WriteRecord(const FlightEntry& entry, std::uint8_t* at) {
  Writer writer{at + sizeof(Heading)};
  Fields(writer, entry);
  const Heading heading = MakeHeading(entry.kind, 0, {writer.to, writer.bytes});
  std::memcpy(at, &heading, sizeof(heading));
}

void AppendRecord(const FlightEntry& entry, std::string& out) {
  const std::size_t at = out.size();
  out.resize(at + RecordBytes(entry));
  WriteRecord(entry, reinterpret_cast<std::uint8_t*>(out.data()) + at);
}

absl::Status DecodeRecord(const Heading& heading, std::span<const std::uint8_t> payload,
                          const FlightInfo& info, FlightRecord& record) {
  record.kind = static_cast<FlightRecordKind>(heading.kind);
  Reader reader{ByteReader(payload)};
  if (!Fields(reader, record)) return Invalid("flight record: unknown kind ", heading.kind);
  if (reader.wrong != nullptr) return Invalid("flight record: ", reader.wrong);
  if (!reader.from.done()) {
    return Invalid("flight record: the length of one of kind ", heading.kind, " is wrong");
  }
  if (const char* wrong = FirstWrong(info, record); wrong != nullptr) {
    return Invalid("flight record: ", wrong);
  }
  if (record.kind != FlightRecordKind::kEvents) return absl::OkStatus();
  if (absl::Status status = CheckEventBytes(payload, "events"); !status.ok()) return status;
  record.events.clear();
  EventReader events(payload);
  for (std::vector<Event> piece; events.Next(piece);)
    record.events.insert(record.events.end(), piece.begin(), piece.end());
  return absl::OkStatus();
}

}  // namespace flight
}  // namespace waymark
