#include "blockstore/flight/encoder.h"

#include <algorithm>
#include <limits>

#include "blockstore/store/event_code.h"

namespace waymark::flight {
namespace {

// Landed rows and reads are split into records of about this size, so that a ring's segments can be
// small.
constexpr std::size_t kChunkBytes = 64 * 1024;
constexpr std::size_t kRunBytes = 24;
constexpr std::size_t kLandedBytes = 16;  // before the rows: step, first row, number of rows
constexpr std::size_t kStepBytes = 21;    // before the slots: step, version, end, number of slots
// The store has applied the events: any that can be written fit.
constexpr EventLimits kNoLimits = {std::numeric_limits<std::int32_t>::max(),
                                   std::numeric_limits<std::int32_t>::max(),
                                   std::numeric_limits<std::uint64_t>::max()};

// A run of rows of a read: equal except for the step, which increases by `stride` per row.
struct Run {
  std::size_t length = 0;
  std::uint64_t stride = 0;
};

Run RunAt(std::span<const RowInfo> infos) {
  const auto same = [&](std::size_t i) {
    return infos[i].reason == infos[0].reason && infos[i].provenance == infos[0].provenance &&
           infos[i].version == infos[0].version;
  };
  Run run{1, 0};
  if (infos.size() > 1 && same(1)) {
    const std::uint64_t stride = infos[1].step - infos[0].step;
    if (stride <= 0xffff) run.stride = stride;
  }
  while (run.length < infos.size() && same(run.length) &&
         infos[run.length].step == infos[0].step + run.length * run.stride) {
    ++run.length;
  }
  return run;
}

// Writes a whole record to `at`; fill(RawWriter&) writes the payload.
template <class Fill>
void WriteRecord(Kind kind, std::uint16_t flags, std::size_t payload_bytes, Fill fill,
                 std::uint8_t* at) {
  RawWriter writer(at + sizeof(Heading));
  fill(writer);
  const Heading heading = MakeHeading(kind, flags, {at + sizeof(Heading), payload_bytes});
  std::memcpy(at, &heading, sizeof heading);
}

}  // namespace

FlightEncoder::FlightEncoder(const FlightInfo& info, RecordOutput* output)
    : info_(info), output_(output) {
  const std::size_t row = RecordedRowBytes(info_) + sizeof(std::int64_t) + 1;
  const std::size_t bytes = info_.max_step_rows * row;
  landed_.reserve(bytes + (bytes / kChunkBytes + 2) * (sizeof(Heading) + kLandedBytes));
  events_.resize(EventReader::kPiece * kMaxEventBytes);
  scratch_.reserve(EventReader::kPiece);
}

template <class Fill>
void FlightEncoder::Append(Kind kind, std::uint16_t flags, std::size_t payload_bytes, Fill fill) {
  std::uint8_t* at = output_->Reserve(sizeof(Heading) + payload_bytes);
  if (at == nullptr) return;
  WriteRecord(kind, flags, payload_bytes, fill, at);
  output_->Commit();
  ++records_;
}

void FlightEncoder::Append(std::span<const std::uint8_t> record) {
  std::uint8_t* at = output_->Reserve(record.size());
  if (at == nullptr) return;
  std::memcpy(at, record.data(), record.size());
  output_->Commit();
  ++records_;
}

void FlightEncoder::OnSchedule(std::uint64_t step, std::uint64_t version) {
  const MutexLock lock(mutex_);
  Append(Kind::kSchedule, 0, sizeof step + sizeof version, [&](RawWriter& writer) {
    writer.Put(step);
    writer.Put(version);
  });
}

void FlightEncoder::OnEvents(std::span<const Event> events) {
  const MutexLock lock(mutex_);
  events_.resize(std::max(events_.size(), events.size() * kMaxEventBytes));
  std::size_t bytes = 0;
  if (!EncodeEvents(events, kNoLimits, scratch_, events_.data(), &bytes).ok()) return;
  Append(Kind::kEvents, 0, bytes,
         [&](RawWriter& writer) { writer.PutBytes(events_.data(), bytes); });
}

void FlightEncoder::OnPoison(std::uint64_t last_step, std::uint64_t version) {
  const MutexLock lock(mutex_);
  Append(Kind::kPoison, 0, sizeof last_step + sizeof version, [&](RawWriter& writer) {
    writer.Put(last_step);
    writer.Put(version);
  });
}

void FlightEncoder::OnStep(const AppliedStep& step) {
  const MutexLock lock(mutex_);
  const std::size_t bytes = kStepBytes + step.slots.size_bytes();
  Append(Kind::kStep, step.device_slots ? kFlagDevice : 0, bytes, [&](RawWriter& writer) {
    writer.Put(step.step);
    writer.Put(step.version);
    writer.Put(static_cast<std::uint8_t>(step.end));
    writer.Put(static_cast<std::uint32_t>(step.slots.size()));
    writer.PutBytes(step.slots.data(), step.slots.size_bytes());
  });
}

void FlightEncoder::OnRows(std::uint64_t step, std::span<const std::uint8_t> ids,
                           std::span<const Reason> verdicts,
                           std::optional<std::span<const std::int64_t>> slots) {
  const std::size_t width = RecordedRowBytes(info_);
  const std::size_t row_bytes = info_.shape.row_bytes();
  const std::size_t chunk = std::max<std::size_t>(1, kChunkBytes / width);
  landed_.clear();
  std::size_t first = 0;
  do {  // once for a step that wrote no row, to record that its slots are known
    const std::size_t count = std::min(chunk, verdicts.size() - first);
    const std::span<const Reason> record_rows = verdicts.subspan(first, count);
    const bool all_there = std::all_of(record_rows.begin(), record_rows.end(),
                                       [](Reason r) { return r == Reason::kNone; });
    std::uint16_t flags = all_there ? 0 : kFlagVerdicts;
    if (first + count < verdicts.size()) flags |= kFlagMore;
    if (slots.has_value()) flags |= kFlagSlots;
    const std::size_t slot_bytes = slots.has_value() ? count * sizeof(std::int64_t) : 0;
    const std::size_t bytes = kLandedBytes + slot_bytes + (all_there ? 0 : count) + count * width;
    const auto fill = [&](RawWriter& writer) {
      writer.Put(step);
      writer.Put(static_cast<std::uint32_t>(first));
      writer.Put(static_cast<std::uint32_t>(count));
      if (slot_bytes > 0) writer.PutBytes(slots->data() + first, slot_bytes);
      if (!all_there) {
        for (const Reason reason : record_rows)
          writer.Put(static_cast<std::uint8_t>(reason));
      }
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint8_t* row = ids.data() + (first + i) * row_bytes;
        std::uint8_t* out = writer.Skip(width);
        if (record_rows[i] != Reason::kNone) {
          std::memset(out, 0, width);
        } else if (info_.rows == FlightRows::kIds) {
          std::memcpy(out, row, width);
        } else {
          DigestRow(info_.shape, row, out);
        }
      }
    };
    const std::size_t at = landed_.size();
    landed_.resize(at + sizeof(Heading) + bytes);
    WriteRecord(Kind::kLanded, flags, bytes, fill, landed_.data() + at);
    first += count;
  } while (first < verdicts.size());
}

void FlightEncoder::OnLanded(std::uint64_t step) {
  const MutexLock lock(mutex_);
  if (landed_.empty()) {
    Append(Kind::kLanded, 0, kLandedBytes, [&](RawWriter& writer) {
      writer.Put(step);
      writer.Put(std::uint64_t{0});  // first row, number of rows
    });
  }
  for (std::span<const std::uint8_t> rest = landed_; !rest.empty();) {
    Heading heading;
    std::memcpy(&heading, rest.data(), sizeof heading);
    Append(rest.first(sizeof heading + heading.size));
    rest = rest.subspan(sizeof heading + heading.size);
  }
  landed_.clear();
}

void FlightEncoder::OnSnapshot(std::uint64_t read_id, std::span<const BlockId> blocks,
                               std::int64_t first, std::int64_t last) {
  const MutexLock lock(mutex_);
  Append(Kind::kSnapshot, 0, 28 + blocks.size() * sizeof(std::int32_t), [&](RawWriter& writer) {
    writer.Put(read_id);
    writer.Put(first);
    writer.Put(last);
    writer.Put(static_cast<std::uint32_t>(blocks.size()));
    for (const BlockId block : blocks)
      writer.Put(block.value());
  });
}

void FlightEncoder::OnReleased(std::uint64_t read_id) {
  const MutexLock lock(mutex_);
  Append(Kind::kReleased, 0, sizeof read_id, [&](RawWriter& writer) { writer.Put(read_id); });
}

void FlightEncoder::OnVoided(const VoidedPage& page) {
  const MutexLock lock(mutex_);
  Append(Kind::kVoided, 0, 33, [&](RawWriter& writer) {
    writer.Put(static_cast<std::uint8_t>(page.by));
    writer.Put(page.block);
    writer.Put(page.ordinal);
    writer.Put(page.read_id);
    for (const std::uint32_t word : page.index_key.w)
      writer.Put(word);
  });
}

void FlightEncoder::OnRead(std::uint64_t read_id, std::int64_t begin,
                           std::span<const RowInfo> infos, std::span<const std::uint64_t> digests) {
  constexpr std::size_t kRows = kChunkBytes / (kRunBytes + sizeof(std::uint64_t));
  const MutexLock lock(mutex_);
  std::size_t first = 0;
  do {
    const std::size_t count = std::min(kRows, infos.size() - first);
    const std::span<const RowInfo> record_rows = infos.subspan(first, count);
    std::uint32_t runs = 0;
    for (std::size_t at = 0; at < count; ++runs)
      at += RunAt(record_rows.subspan(at)).length;
    const std::size_t bytes = 24 + runs * kRunBytes + count * sizeof(std::uint64_t);
    Append(Kind::kRead, 0, bytes, [&](RawWriter& writer) {
      writer.Put(read_id);
      writer.Put(begin + static_cast<std::int64_t>(first));
      writer.Put(static_cast<std::uint32_t>(count));
      writer.Put(runs);
      for (std::size_t at = 0; at < count;) {
        const Run run = RunAt(record_rows.subspan(at));
        writer.Put(static_cast<std::uint32_t>(run.length));
        writer.Put(static_cast<std::uint8_t>(record_rows[at].reason));
        writer.Put(static_cast<std::uint8_t>(record_rows[at].provenance));
        writer.Put(static_cast<std::uint16_t>(run.stride));
        writer.Put(record_rows[at].version);
        writer.Put(record_rows[at].step);
        at += run.length;
      }
      writer.PutBytes(digests.data() + first, count * sizeof(std::uint64_t));
    });
    first += count;
  } while (first < infos.size());
}

void FlightEncoder::Close(bool complete) {
  const MutexLock lock(mutex_);
  const std::uint64_t records = records_;
  Append(Kind::kClose, 0, sizeof records + 1, [&](RawWriter& writer) {
    writer.Put(records);
    writer.Put(static_cast<std::uint8_t>(complete ? 1 : 0));
  });
}

std::uint64_t FlightEncoder::records() const {
  const MutexLock lock(mutex_);
  return records_;
}

}  // namespace waymark::flight
