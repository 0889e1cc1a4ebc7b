#include "blockstore/flight/reader.h"

#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/flight/format.h"
#include "blockstore/invalid.h"
#include "blockstore/whole_file.h"

namespace waymark {

absl::StatusOr<FlightReader> FlightReader::Open(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadWholeFile(path, std::numeric_limits<std::size_t>::max());
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<FlightReader> reader = FromBytes(*std::move(bytes));
  if (reader.ok()) return reader;
  return absl::Status(reader.status().code(),
                      absl::StrCat("'", path, "': ", reader.status().message()));
}

absl::StatusOr<FlightReader> FlightReader::FromBytes(std::string file) {
  constexpr std::string_view kMagic(flight::kMagic, sizeof flight::kMagic);
  if (!file.starts_with(kMagic)) return Invalid("not a flight: it does not begin with WMFLIGHT");
  std::span<const std::uint8_t> rest = flight::BytesOf(file).subspan(kMagic.size());
  flight::Heading heading;
  std::span<const std::uint8_t> payload;
  const absl::StatusOr<bool> whole = flight::TakeRecord(rest, heading, payload);
  if (whole.ok() && !*whole) return Invalid("flight head: the file ends inside it");
  if (!whole.ok() || heading.kind != static_cast<std::uint16_t>(FlightRecordKind::kInfo)) {
    return Invalid("flight head: damaged (checksum)");
  }
  if (heading.flags != flight::kFormatVersion) {
    return Invalid("flight head: format version ", heading.flags, "; this version reads ",
                   flight::kFormatVersion);
  }
  absl::StatusOr<FlightInfo> info = flight::DecodeInfo(payload);
  if (!info.ok()) return info.status();
  FlightReader reader;
  reader.first_ = reader.at_ = file.size() - rest.size();
  reader.bytes_ = std::move(file);
  reader.info_ = *std::move(info);
  return reader;
}

absl::StatusOr<bool> FlightReader::Next(FlightRecord& record) {
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("flight is damaged at byte ", at_, ": ", what));
  };
  std::span<const std::uint8_t> rest = flight::BytesOf(bytes_).subspan(at_);
  if (rest.empty()) {
    truncated_ = truncated_ || !closed_;
    return false;
  }
  if (closed_) return damaged("bytes follow the closing record");
  flight::Heading heading;
  std::span<const std::uint8_t> payload;
  const absl::StatusOr<bool> whole = flight::TakeRecord(rest, heading, payload);
  if (!whole.ok()) return damaged(whole.status().message());
  if (!*whole) {
    truncated_ = true;
    return false;
  }
  const absl::Status status = flight::DecodeRecord(heading, payload, info_, record);
  if (!status.ok()) return damaged(status.message());
  record.offset = at_;
  if (record.kind == FlightRecordKind::kCheckpoint && records_ != 0) {
    return damaged("a checkpoint that is not the first record");
  }
  if (record.kind == FlightRecordKind::kClose && record.records != records_) {
    return damaged(
        absl::StrCat("it was closed after ", record.records, " records, but has ", records_));
  }
  at_ = bytes_.size() - rest.size();
  ++records_;
  closed_ = record.kind == FlightRecordKind::kClose;
  return true;
}

void FlightReader::Rewind() {
  at_ = first_;
  records_ = 0;
  closed_ = truncated_ = false;
}

}  // namespace waymark
