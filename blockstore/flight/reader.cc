#include "blockstore/flight/reader.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/flight/format.h"
#include "blockstore/invalid.h"

namespace waymark {
namespace {

std::span<const std::uint8_t> FlightBytes(const std::string& flight) {
  return {reinterpret_cast<const std::uint8_t*>(flight.data()), flight.size()};
}

}  // namespace

absl::StatusOr<FlightReader> FlightReader::Open(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("flight file '", path, "' cannot be opened: ", std::strerror(errno)));
  }
  std::string bytes;
  std::vector<char> piece(std::size_t{1} << 20);
  while (const std::size_t read = std::fread(piece.data(), 1, piece.size(), file))
    bytes.append(piece.data(), read);
  const int error = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  if (error == 0) return FromBytes(std::move(bytes));
  return Invalid("flight file '", path, "' cannot be read: ", std::strerror(error));
}

absl::StatusOr<FlightReader> FlightReader::FromBytes(std::string file) {
  const std::span<const std::uint8_t> bytes = FlightBytes(file);
  constexpr std::size_t kMagicBytes = sizeof flight::kMagic;
  if (bytes.size() < kMagicBytes || std::memcmp(bytes.data(), flight::kMagic, kMagicBytes) != 0) {
    return Invalid("not a flight: it does not begin with WMFLIGHT");
  }
  std::span<const std::uint8_t> rest = bytes.subspan(kMagicBytes);
  flight::Heading heading;
  if (rest.size() < sizeof heading) {
    return Invalid("flight head: the file ends inside it");
  }
  std::memcpy(&heading, rest.data(), sizeof heading);
  rest = rest.subspan(sizeof heading);
  if (!flight::HeadingIntact(heading) ||
      heading.kind != static_cast<std::uint16_t>(FlightRecordKind::kInfo)) {
    return Invalid("flight head: damaged (checksum)");
  }
  if (heading.flags != flight::kFormatVersion) {
    return Invalid("flight head: format version ", heading.flags, "; this version reads ",
                   flight::kFormatVersion);
  }
  if (heading.size > rest.size()) {
    return Invalid("flight head: the file ends inside it");
  }
  const std::span<const std::uint8_t> payload = rest.first(heading.size);
  if (!flight::PayloadIntact(heading, payload)) {
    return Invalid("flight head: damaged (checksum)");
  }
  absl::StatusOr<FlightInfo> info = flight::DecodeInfo(payload);
  if (!info.ok()) return info.status();
  FlightReader reader;
  reader.bytes_ = std::move(file);
  reader.first_ = reader.at_ = kMagicBytes + sizeof heading + heading.size;
  reader.info_ = *std::move(info);
  return reader;
}

absl::StatusOr<bool> FlightReader::Next(FlightRecord& record) {
  const auto damaged = [&](const std::string& what) {
    return absl::DataLossError(absl::StrCat("flight is damaged at byte ", at_, ": ", what));
  };
  std::span<const std::uint8_t> rest = FlightBytes(bytes_).subspan(at_);
  if (rest.empty()) {
    truncated_ = truncated_ || !closed_;
    return false;
  }
  if (closed_) return damaged("bytes follow the closing record");
  flight::Heading heading;
  if (rest.size() < sizeof heading) {
    truncated_ = true;
    return false;
  }
  std::memcpy(&heading, rest.data(), sizeof heading);
  rest = rest.subspan(sizeof heading);
  if (!flight::HeadingIntact(heading)) return damaged("the heading's checksum is wrong");
  if (heading.size > flight::kMaxPayload) return damaged("a record is too long");
  if (heading.size > rest.size()) {
    truncated_ = true;
    return false;
  }
  const std::span<const std::uint8_t> payload = rest.first(heading.size);
  if (!flight::PayloadIntact(heading, payload)) return damaged("a record's checksum is wrong");
  const absl::Status status = flight::DecodeRecord(heading, payload, info_, record);
  if (!status.ok()) return damaged(std::string(status.message()));
  record.offset = at_;
  if (record.kind == FlightRecordKind::kCheckpoint && records_ != 0) {
    return damaged("a checkpoint that is not the first record");
  }
  if (record.kind == FlightRecordKind::kClose && record.records != records_) {
    return damaged(
        absl::StrCat("it was closed after ", record.records, " records, but has ", records_));
  }
  at_ += sizeof heading + heading.size;
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
