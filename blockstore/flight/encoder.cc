#include "blockstore/flight/encoder.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "blockstore/flight/format.h"
#include "blockstore/store/event_code.h"

namespace waymark::flight {
namespace {

// Landed rows and reads are split into records of about this size, so that a ring's segments can be
// small.
constexpr std::size_t kChunkBytes = 64 * 1024;
constexpr std::size_t kMostReadBytes = 32;  // of a row of a read: a run of its own, and its digest
// The store has applied the events: any that can be written fit.
constexpr EventLimits kNoLimits = {std::numeric_limits<std::int32_t>::max(),
                                   std::numeric_limits<std::int32_t>::max(),
                                   std::numeric_limits<std::uint64_t>::max()};

}  // namespace

FlightEncoder::FlightEncoder(const FlightInfo& info) : info_(info) {
  rows_.reserve(info_.max_step_rows * RecordedRowBytes(info_));
  verdicts_.reserve(info_.max_step_rows);
  events_.resize(EventReader::kPiece * kMaxEventBytes);
  scratch_.reserve(EventReader::kPiece);
}

void FlightEncoder::Append(const FlightEntry& entry) {
  std::uint8_t* at = Reserve(RecordBytes(entry));
  if (at == nullptr) return;
  WriteRecord(entry, at);
  ++records_;
}

void FlightEncoder::On(const FlightEntry& entry) {
  const MutexLock lock(mutex_);
  switch (entry.kind) {
    case FlightRecordKind::kEvents:
      return AppendEvents(entry.events);
    case FlightRecordKind::kLanded:
      return AppendLanded(entry.step);
    case FlightRecordKind::kRead:
      return AppendRead(entry);
    default:
      return Append(entry);
  }
}

void FlightEncoder::AppendEvents(std::span<const Event> events) {
  events_.resize(std::max(events_.size(), events.size() * kMaxEventBytes));
  std::size_t bytes = 0;
  if (!EncodeEvents(events, kNoLimits, scratch_, events_.data(), &bytes).ok()) return;
  Append({.kind = FlightRecordKind::kEvents, .bytes = std::span(events_).first(bytes)});
}

void FlightEncoder::OnRows(std::uint64_t /*step*/, std::span<const std::uint8_t> ids,
                           std::span<const Reason> verdicts) {
  const std::size_t width = RecordedRowBytes(info_);
  const std::size_t row_bytes = info_.shape.row_bytes();
  rows_.assign(verdicts.size() * width, 0);
  verdicts_.assign(verdicts.begin(), verdicts.end());
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    if (verdicts[i] != Reason::kNone) continue;
    const std::uint8_t* const row = ids.data() + i * row_bytes;
    if (info_.rows == FlightRows::kIds) {
      std::memcpy(rows_.data() + i * width, row, width);
    } else {
      DigestRow(info_.shape, row, rows_.data() + i * width);
    }
  }
}

void FlightEncoder::AppendLanded(std::uint64_t step) {
  const std::size_t width = RecordedRowBytes(info_);
  const std::size_t chunk = std::max<std::size_t>(1, kChunkBytes / width);
  std::size_t first = 0;
  do {
    const std::size_t count = std::min(chunk, verdicts_.size() - first);
    std::span<const Reason> verdicts = std::span(verdicts_).subspan(first, count);
    const bool all_there =
        std::all_of(verdicts.begin(), verdicts.end(), [](Reason r) { return r == Reason::kNone; });
    if (all_there) verdicts = {};
    const FlightEntry landed{.kind = FlightRecordKind::kLanded,
                             .step = step,
                             .more = first + count < verdicts_.size(),
                             .begin = static_cast<std::int64_t>(first),
                             .verdicts = verdicts,
                             .bytes = std::span(rows_).subspan(first * width, count * width)};
    Append(landed);
    first += count;
  } while (first < verdicts_.size());
  rows_.clear();
  verdicts_.clear();
}

void FlightEncoder::AppendRead(const FlightEntry& read) {
  FlightEntry part = read;
  std::size_t first = 0;
  do {
    const std::size_t count = std::min(kChunkBytes / kMostReadBytes, read.infos.size() - first);
    part.begin = read.begin + static_cast<std::int64_t>(first);
    part.infos = read.infos.subspan(first, count);
    part.digests = read.digests.subspan(first, count);
    Append(part);
    first += count;
  } while (first < read.infos.size());
}

void FlightEncoder::Close(bool complete) {
  const MutexLock lock(mutex_);
  Append({.kind = FlightRecordKind::kClose, .records = records_, .complete = complete});
}

}  // namespace waymark::flight
