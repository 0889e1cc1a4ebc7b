#include "blockstore/flight/record.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/flight/format.h"
#include "blockstore/store/event_code.h"

namespace waymark {

FlightEntry FlightRecord::entry() const {
  return {kind,    step,   version, end,   device_slots, has_slots, more,
          read_id, first,  last,    begin, voided,       records,   complete,
          events,  blocks, slots,   infos, digests,      verdicts,  bytes};
}

namespace flight {
namespace {

// A run of rows of a read: equal except for the step, which increases by `stride` per row.
struct Run {
  std::uint32_t length;
  Reason reason;
  Provenance provenance;
  std::uint16_t stride;
  std::uint64_t version;
  std::uint64_t step;
};
static_assert(sizeof(Run) == 24);

Run RunAt(std::span<const RowInfo> infos) {
  const RowInfo& front = infos[0];
  const auto same = [&](std::size_t i) {
    return infos[i].reason == front.reason && infos[i].provenance == front.provenance &&
           infos[i].version == front.version;
  };
  Run run{1, front.reason, front.provenance, 0, front.version, front.step};
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

template <class Visit>
void ForEachRun(std::span<const RowInfo> infos, const Visit& visit) {
  while (!infos.empty()) {
    const Run run = RunAt(infos);
    visit(run);
    infos = infos.subspan(run.length);
  }
}

// Counts the bytes of a payload.
struct Counter {
  template <class T>
  void Value(const T&) {
    bytes += sizeof(T);
  }
  template <class T>
  void Items(std::span<const T> items) {
    bytes += sizeof(std::uint32_t) + items.size_bytes();
  }
  void Rest(std::span<const std::uint8_t> rest) { bytes += rest.size(); }
  void Infos(std::span<const RowInfo> infos) {
    bytes += sizeof(std::uint32_t);
    ForEachRun(infos, [&](const Run& run) { bytes += sizeof(run); });
  }
  std::size_t bytes = 0;
};

// Writes a payload.
struct Writer {
  template <class T>
  void Value(const T& value) {
    to.Put(value);
  }
  template <class T>
  void Items(std::span<const T> items) {
    to.Put(static_cast<std::uint32_t>(items.size()));
    to.PutBytes(items.data(), items.size_bytes());
  }
  void Rest(std::span<const std::uint8_t> rest) { to.PutBytes(rest.data(), rest.size()); }
  void Infos(std::span<const RowInfo> infos) {
    std::uint8_t* const count = to.Skip(sizeof(std::uint32_t));
    std::uint32_t runs = 0;
    ForEachRun(infos, [&](const Run& run) {
      to.Put(run);
      ++runs;
    });
    std::memcpy(count, &runs, sizeof(runs));
  }
  RawWriter to;
};

// Reads a payload. After bytes that no writer writes, `wrong` says why, or from.done() is false.
struct Reader {
  template <class T>
  void Value(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = from.Get<std::uint8_t>();
      if (byte > 1) wrong = "a yes or no is neither";
      value = byte == 1;
    } else {
      value = from.Get<T>();
    }
  }
  template <class T>
  void Items(std::vector<T>& items) {
    const auto count = from.Get<std::uint32_t>();
    const std::uint8_t* const at = from.Take(count, sizeof(T));
    items.resize(from.ok() ? count : 0);
    if (!items.empty()) std::memcpy(items.data(), at, count * sizeof(T));
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
      if (static_cast<int>(run.reason) >= kNumReasons ||
          static_cast<int>(run.provenance) >= kNumProvenances) {
        wrong = "a run of a read has an unknown reason or provenance";
        return;
      }
      for (std::uint32_t row = 0; row < run.length; ++row) {
        infos.push_back(
            {run.step + std::uint64_t{row} * run.stride, run.version, run.reason, run.provenance});
      }
    }
  }
  ByteReader from;
  const char* wrong = nullptr;
};

// The payload of each kind, for writing and for reading. False: there is no such kind.
template <class Io, class Record>
bool Fields(Io& io, Record& record) {
  switch (record.kind) {
    case FlightRecordKind::kCheckpoint:
    case FlightRecordKind::kEvents:
      io.Rest(record.bytes);
      return true;
    case FlightRecordKind::kStep:
      io.Value(record.step);
      io.Value(record.version);
      io.Value(record.end);
      io.Value(record.device_slots);
      io.Items(record.slots);
      return true;
    case FlightRecordKind::kLanded:
      io.Value(record.step);
      io.Value(record.begin);
      io.Value(record.more);
      io.Value(record.has_slots);
      io.Items(record.slots);
      io.Items(record.verdicts);
      io.Items(record.bytes);
      return true;
    case FlightRecordKind::kSnapshot:
      io.Value(record.read_id);
      io.Value(record.first);
      io.Value(record.last);
      io.Items(record.blocks);
      return true;
    case FlightRecordKind::kReleased:
      io.Value(record.read_id);
      return true;
    case FlightRecordKind::kRead:
      io.Value(record.read_id);
      io.Value(record.begin);
      io.Infos(record.infos);
      io.Items(record.digests);
      return true;
    case FlightRecordKind::kSchedule:
    case FlightRecordKind::kPoison:
      io.Value(record.step);
      io.Value(record.version);
      return true;
    case FlightRecordKind::kVoided:
      io.Value(record.voided.by);
      io.Value(record.voided.block);
      io.Value(record.voided.ordinal);
      io.Value(record.voided.read_id);
      io.Value(record.voided.index_key);
      return true;
    case FlightRecordKind::kClose:
      io.Value(record.records);
      io.Value(record.complete);
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
      if (record.bytes.size() % width != 0 || record.verdicts.size() != rows ||
          record.slots.size() != (record.has_slots ? rows : 0)) {
        return "the length of landed rows is wrong";
      }
      if (record.begin < 0 ||
          record.begin > std::int64_t{info.max_step_rows} - static_cast<std::int64_t>(rows)) {
        return "more landed rows than a step may have";
      }
      for (const Reason verdict : record.verdicts) {
        if (static_cast<int>(verdict) >= kNumReasons) {
          return "the verdict of a landed row is unknown";
        }
      }
      return nullptr;
    }
    case FlightRecordKind::kSnapshot:
      if (record.first < 0 || record.last < record.first) return "a snapshot's range is wrong";
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

std::size_t RecordBytes(const FlightEntry& entry) {
  Counter counter;
  Fields(counter, entry);
  return sizeof(Heading) + counter.bytes;
}

void WriteRecord(const FlightEntry& entry, std::uint8_t* at) {
  Writer writer{RawWriter(at + sizeof(Heading))};
  Fields(writer, entry);
  const Heading heading = MakeHeading(entry.kind, 0, {at + sizeof(Heading), writer.to.Skip(0)});
  std::memcpy(at, &heading, sizeof(heading));
}

void AppendRecord(const FlightEntry& entry, std::string& out) {
  const std::size_t at = out.size();
  out.resize(at + RecordBytes(entry));
  WriteRecord(entry, reinterpret_cast<std::uint8_t*>(out.data()) + at);
}

absl::Status DecodeRecord(const Heading& heading, std::span<const std::uint8_t> payload,
                          const FlightInfo& info, FlightRecord& record) {
  const auto broken = [](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("flight record: ", what));
  };
  record.kind = static_cast<FlightRecordKind>(heading.kind);
  Reader reader{ByteReader(payload)};
  if (!Fields(reader, record)) {
    return absl::InvalidArgumentError(absl::StrCat("flight record: unknown kind ", heading.kind));
  }
  if (reader.wrong != nullptr) return broken(reader.wrong);
  if (!reader.from.done()) {
    return absl::InvalidArgumentError(
        absl::StrCat("flight record: the length of one of kind ", heading.kind, " is wrong"));
  }
  if (const char* wrong = FirstWrong(info, record); wrong != nullptr) return broken(wrong);
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
