#include "blockstore/flight/reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/flight/format.h"

namespace waymark {

absl::StatusOr<FlightReader> FlightReader::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return absl::NotFoundError(
        absl::StrCat("flight file '", path, "' cannot be opened: ", std::strerror(errno)));
  }
  struct stat about = {};
  if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
    close(file);
    return absl::InvalidArgumentError(
        absl::StrCat("flight file '", path, "' cannot be read: it is not a plain file"));
  }
  const auto size = static_cast<std::size_t>(about.st_size);
  void* const data = size == 0 ? nullptr : mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  if (data == MAP_FAILED) {
    return absl::InvalidArgumentError(
        absl::StrCat("flight file '", path, "' cannot be read: ", std::strerror(error)));
  }
  const auto unmap = [size](void* mapped) {
    if (mapped != nullptr) munmap(mapped, size);
  };
  return Begin({static_cast<const std::uint8_t*>(data), size}, std::shared_ptr<void>(data, unmap));
}

absl::StatusOr<FlightReader> FlightReader::FromBytes(std::string bytes) {
  const auto owner = std::make_shared<const std::string>(std::move(bytes));
  return Begin({reinterpret_cast<const std::uint8_t*>(owner->data()), owner->size()}, owner);
}

absl::StatusOr<FlightReader> FlightReader::Begin(std::span<const std::uint8_t> bytes,
                                                 std::shared_ptr<const void> owner) {
  constexpr std::size_t kMagicBytes = sizeof flight::kMagic;
  if (bytes.size() < kMagicBytes || std::memcmp(bytes.data(), flight::kMagic, kMagicBytes) != 0) {
    return absl::InvalidArgumentError("not a flight: it does not begin with WMFLIGHT");
  }
  std::span<const std::uint8_t> rest = bytes.subspan(kMagicBytes);
  flight::Heading heading;
  if (rest.size() < sizeof heading) {
    return absl::InvalidArgumentError("flight head: the file ends inside it");
  }
  std::memcpy(&heading, rest.data(), sizeof heading);
  rest = rest.subspan(sizeof heading);
  if (!flight::HeadingIntact(heading) ||
      heading.kind != static_cast<std::uint16_t>(FlightRecordKind::kInfo)) {
    return absl::InvalidArgumentError("flight head: damaged (checksum)");
  }
  if (heading.flags != flight::kFormatVersion) {
    return absl::InvalidArgumentError(absl::StrCat("flight head: format version ", heading.flags,
                                                   "; this version reads ",
                                                   flight::kFormatVersion));
  }
  if (heading.size > rest.size()) {
    return absl::InvalidArgumentError("flight head: the file ends inside it");
  }
  const std::span<const std::uint8_t> payload = rest.first(heading.size);
  if (!flight::PayloadIntact(heading, payload)) {
    return absl::InvalidArgumentError("flight head: damaged (checksum)");
  }
  absl::StatusOr<FlightInfo> info = flight::DecodeInfo(payload);
  if (!info.ok()) return info.status();
  FlightReader reader;
  reader.owner_ = std::move(owner);
  reader.bytes_ = bytes;
  reader.first_ = reader.at_ = kMagicBytes + sizeof heading + heading.size;
  reader.info_ = *std::move(info);
  return reader;
}

absl::StatusOr<bool> FlightReader::Next(FlightRecord& record) {
  const auto damaged = [&](const std::string& what) {
    return absl::DataLossError(absl::StrCat("flight is damaged at byte ", at_, ": ", what));
  };
  std::span<const std::uint8_t> rest = bytes_.subspan(at_);
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
