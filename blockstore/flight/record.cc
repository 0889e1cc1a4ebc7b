#include "blockstore/flight/record.h"

#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/flight/format.h"
#include "blockstore/store/event_code.h"

namespace waymark::flight {
namespace {

absl::Status Broken(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("flight record: ", what));
}

void CopySlots(const std::uint8_t* from, std::size_t count, std::vector<std::int64_t>& to) {
  to.resize(count);
  if (count > 0) std::memcpy(to.data(), from, count * sizeof(std::int64_t));
}

absl::Status DecodeStep(std::span<const std::uint8_t> payload, FlightRecord& record) {
  ByteReader reader(payload);
  record.step = reader.Get<std::uint64_t>();
  record.version = reader.Get<std::uint64_t>();
  const auto end = reader.Get<std::uint8_t>();
  const std::size_t count = reader.Get<std::uint32_t>();
  const std::uint8_t* slots = reader.Take(count, sizeof(std::int64_t));
  if (!reader.done()) return Broken("the length of a step is wrong");
  if (end < 1 || end > 3) return Broken("the end of a step must be 1, 2 or 3");
  record.end = static_cast<StepEnd>(end);
  CopySlots(slots, count, record.slots);
  return absl::OkStatus();
}

absl::Status DecodeSchedule(std::span<const std::uint8_t> payload, FlightRecord& record) {
  ByteReader reader(payload);
  record.step = reader.Get<std::uint64_t>();
  record.version = reader.Get<std::uint64_t>();
  return reader.done() ? absl::OkStatus() : Broken("the length of a schedule is wrong");
}

absl::Status DecodeEvents(std::span<const std::uint8_t> payload, FlightRecord& record) {
  absl::Status status = CheckEventBytes(payload, "events");
  if (!status.ok()) return status;
  record.events.clear();
  EventReader reader(payload);
  for (std::vector<Event> piece; reader.Next(piece);)
    record.events.insert(record.events.end(), piece.begin(), piece.end());
  return status;
}

absl::Status DecodePoison(std::span<const std::uint8_t> payload, FlightRecord& record) {
  ByteReader reader(payload);
  record.step = reader.Get<std::uint64_t>();
  record.version = reader.Get<std::uint64_t>();
  if (!reader.done()) return Broken("the length of a poison is wrong");
  return absl::OkStatus();
}

absl::Status DecodeLanded(std::span<const std::uint8_t> payload, std::uint16_t flags,
                          const FlightInfo& info, FlightRecord& record) {
  ByteReader reader(payload);
  record.step = reader.Get<std::uint64_t>();
  record.begin = reader.Get<std::uint32_t>();
  const std::size_t count = reader.Get<std::uint32_t>();
  const std::size_t width = RecordedRowBytes(info);
  record.more = (flags & kFlagMore) != 0;
  const std::uint8_t* slots =
      (flags & kFlagSlots) != 0 ? reader.Take(count, sizeof(std::int64_t)) : nullptr;
  const std::uint8_t* verdicts = (flags & kFlagVerdicts) != 0 ? reader.Take(count) : nullptr;
  const std::uint8_t* rows = reader.Take(count, width);
  if (!reader.done()) return Broken("the length of landed rows is wrong");
  if (record.begin + static_cast<std::int64_t>(count) > info.max_step_rows) {
    return Broken("more landed rows than a step may have");
  }
  record.has_slots = (flags & kFlagSlots) != 0;
  CopySlots(slots, record.has_slots ? count : 0, record.slots);
  record.verdicts.assign(count, Reason::kNone);
  if (verdicts != nullptr) {
    for (std::size_t i = 0; i < count; ++i) {
      if (verdicts[i] >= kNumReasons) return Broken("the verdict of a landed row is unknown");
      record.verdicts[i] = static_cast<Reason>(verdicts[i]);
    }
  }
  record.bytes.assign(rows, rows + count * width);
  return absl::OkStatus();
}

absl::Status DecodeSnapshot(std::span<const std::uint8_t> payload, FlightRecord& record) {
  ByteReader reader(payload);
  record.read_id = reader.Get<std::uint64_t>();
  record.first = reader.Get<std::int64_t>();
  record.last = reader.Get<std::int64_t>();
  const std::size_t count = reader.Get<std::uint32_t>();
  const std::uint8_t* blocks = reader.Take(count, sizeof(std::int32_t));
  if (!reader.done()) return Broken("the length of a snapshot is wrong");
  if (record.first < 0 || record.last < record.first) return Broken("a snapshot's range is wrong");
  record.blocks.clear();
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t block = 0;
    std::memcpy(&block, blocks + i * sizeof block, sizeof block);
    record.blocks.emplace_back(block);
  }
  return absl::OkStatus();
}

absl::Status DecodeRead(std::span<const std::uint8_t> payload, FlightRecord& record) {
  ByteReader reader(payload);
  record.read_id = reader.Get<std::uint64_t>();
  record.begin = reader.Get<std::int64_t>();
  const std::size_t count = reader.Get<std::uint32_t>();
  const std::size_t runs = reader.Get<std::uint32_t>();
  if (record.begin < 0) return Broken("a read begins below 0");
  if (count > reader.left() / sizeof(std::uint64_t)) return Broken("a read is too short");
  record.infos.clear();
  record.infos.reserve(count);
  for (std::size_t i = 0; i < runs; ++i) {
    const std::size_t length = reader.Get<std::uint32_t>();
    const auto reason = reader.Get<std::uint8_t>();
    const auto provenance = reader.Get<std::uint8_t>();
    const std::uint64_t stride = reader.Get<std::uint16_t>();
    RowInfo info;
    info.version = reader.Get<std::uint64_t>();
    const auto step = reader.Get<std::uint64_t>();
    if (!reader.ok() || length > count - record.infos.size()) {
      return Broken("the runs of a read are longer than the read");
    }
    if (reason >= kNumReasons || provenance >= kNumProvenances) {
      return Broken("a run of a read has an unknown reason or provenance");
    }
    info.reason = static_cast<Reason>(reason);
    info.provenance = static_cast<Provenance>(provenance);
    for (std::size_t row = 0; row < length; ++row) {
      info.step = step + row * stride;
      record.infos.push_back(info);
    }
  }
  const std::uint8_t* digests = reader.Take(count, sizeof(std::uint64_t));
  if (!reader.done() || record.infos.size() != count) {
    return Broken("the length of a read is wrong");
  }
  record.digests.resize(count);
  if (count > 0) std::memcpy(record.digests.data(), digests, count * sizeof(std::uint64_t));
  return absl::OkStatus();
}

absl::Status DecodeVoided(std::span<const std::uint8_t> payload, FlightRecord& record) {
  ByteReader reader(payload);
  const auto by = reader.Get<std::uint8_t>();
  record.voided.block = reader.Get<std::int32_t>();
  record.voided.ordinal = reader.Get<std::uint32_t>();
  record.voided.read_id = reader.Get<std::uint64_t>();
  for (std::uint32_t& word : record.voided.index_key.w)
    word = reader.Get<std::uint32_t>();
  if (!reader.done()) return Broken("the length of a voided page is wrong");
  if (by < 1 || by > 3) return Broken("a voided page is named by 1, 2 or 3");
  record.voided.by = static_cast<VoidedPage::By>(by);
  return absl::OkStatus();
}

}  // namespace

absl::Status DecodeRecord(const Heading& heading, std::span<const std::uint8_t> payload,
                          const FlightInfo& info, FlightRecord& record) {
  ByteReader reader(payload);
  switch (static_cast<Kind>(heading.kind)) {
    case Kind::kCheckpoint:
      record.kind = FlightRecordKind::kCheckpoint;
      record.bytes.assign(payload.begin(), payload.end());
      return absl::OkStatus();
    case Kind::kStep:
      record.kind = FlightRecordKind::kStep;
      record.device_slots = (heading.flags & kFlagDevice) != 0;
      return DecodeStep(payload, record);
    case Kind::kLanded:
      record.kind = FlightRecordKind::kLanded;
      return DecodeLanded(payload, heading.flags, info, record);
    case Kind::kSnapshot:
      record.kind = FlightRecordKind::kSnapshot;
      return DecodeSnapshot(payload, record);
    case Kind::kReleased:
      record.kind = FlightRecordKind::kReleased;
      record.read_id = reader.Get<std::uint64_t>();
      return reader.done() ? absl::OkStatus() : Broken("the length of a release is wrong");
    case Kind::kRead:
      record.kind = FlightRecordKind::kRead;
      return DecodeRead(payload, record);
    case Kind::kClose: {
      record.kind = FlightRecordKind::kClose;
      record.records = reader.Get<std::uint64_t>();
      record.complete = reader.Get<std::uint8_t>() != 0;
      return reader.done() ? absl::OkStatus() : Broken("the length of a close is wrong");
    }
    case Kind::kSchedule:
      record.kind = FlightRecordKind::kSchedule;
      return DecodeSchedule(payload, record);
    case Kind::kEvents:
      record.kind = FlightRecordKind::kEvents;
      return DecodeEvents(payload, record);
    case Kind::kVoided:
      record.kind = FlightRecordKind::kVoided;
      return DecodeVoided(payload, record);
    case Kind::kPoison:
      record.kind = FlightRecordKind::kPoison;
      return DecodePoison(payload, record);
    case Kind::kInfo:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("flight record: unknown kind ", heading.kind));
}

}  // namespace waymark::flight
