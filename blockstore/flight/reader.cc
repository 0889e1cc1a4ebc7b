#include "blockstore/flight/reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/flight/format.h"

namespace waymark {

struct FlightReader::State {
  ~State() {
    if (file != nullptr) std::fclose(file);
  }

  // Reads up to `want` bytes into `out`; fewer only at the end, or if the system fails (`failed`).
  std::size_t Read(void* out, std::size_t want) {
    std::size_t got = 0;
    if (file != nullptr) {
      got = std::fread(out, 1, want, file);
      failed = failed || std::ferror(file) != 0;
    } else {
      got = std::min(want, bytes.size() - static_cast<std::size_t>(offset));
      if (got > 0) std::memcpy(out, bytes.data() + offset, got);
    }
    offset += got;
    return got;
  }

  std::FILE* file = nullptr;
  std::string bytes;       // used if there is no file
  std::uint64_t size = 0;  // of the whole flight
  std::uint64_t offset = 0;
  std::uint64_t first_record = 0;
  std::uint64_t records = 0;
  bool closed = false;
  bool truncated = false;
  bool failed = false;
  FlightInfo info;
  std::vector<std::uint8_t> payload;
};

FlightReader::FlightReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
FlightReader::~FlightReader() = default;
FlightReader::FlightReader(FlightReader&&) noexcept = default;
FlightReader& FlightReader::operator=(FlightReader&&) noexcept = default;

absl::StatusOr<FlightReader> FlightReader::Open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->file = std::fopen(path.c_str(), "rb");
  if (state->file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("flight file '", path, "' cannot be opened: ", std::strerror(errno)));
  }
  // A folder can be opened, but its end cannot be reached.
  if (std::fseek(state->file, 0, SEEK_END) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("flight file '", path, "' cannot be read: ", std::strerror(errno)));
  }
  const long size = std::ftell(state->file);
  if (size < 0 || size == std::numeric_limits<long>::max() ||
      std::fseek(state->file, 0, SEEK_SET) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("flight file '", path, "' cannot be read: it is not a plain file"));
  }
  state->size = static_cast<std::uint64_t>(size);
  return Begin(std::move(state));
}

absl::StatusOr<FlightReader> FlightReader::FromBytes(std::string bytes) {
  auto state = std::make_unique<State>();
  state->size = bytes.size();
  state->bytes = std::move(bytes);
  return Begin(std::move(state));
}

absl::StatusOr<FlightReader> FlightReader::Begin(std::unique_ptr<State> state) {
  char magic[sizeof flight::kMagic];
  if (state->Read(magic, sizeof magic) != sizeof magic ||
      std::memcmp(magic, flight::kMagic, sizeof magic) != 0) {
    return absl::InvalidArgumentError("not a flight: it does not begin with WMFLIGHT");
  }
  flight::Heading heading;
  if (state->Read(&heading, sizeof heading) != sizeof heading) {
    return absl::InvalidArgumentError("flight head: the file ends inside it");
  }
  if (!flight::HeadingIntact(heading) ||
      heading.kind != static_cast<std::uint16_t>(FlightRecordKind::kInfo)) {
    return absl::InvalidArgumentError("flight head: damaged (checksum)");
  }
  if (heading.flags != flight::kFormatVersion) {
    return absl::InvalidArgumentError(absl::StrCat("flight head: format version ", heading.flags,
                                                   "; this version reads ",
                                                   flight::kFormatVersion));
  }
  if (heading.size > state->size - state->offset) {
    return absl::InvalidArgumentError("flight head: the file ends inside it");
  }
  state->payload.resize(heading.size);
  if (state->Read(state->payload.data(), heading.size) != heading.size ||
      !flight::PayloadIntact(heading, state->payload)) {
    return absl::InvalidArgumentError("flight head: damaged (checksum)");
  }
  absl::StatusOr<FlightInfo> info = flight::DecodeInfo(state->payload);
  if (!info.ok()) return info.status();
  state->info = *std::move(info);
  state->first_record = state->offset;
  return FlightReader(std::move(state));
}

const FlightInfo& FlightReader::info() const {
  return state_->info;
}
bool FlightReader::truncated() const {
  return state_->truncated;
}
std::uint64_t FlightReader::records() const {
  return state_->records;
}

absl::StatusOr<bool> FlightReader::Next(FlightRecord& record) {
  State& s = *state_;
  const auto damaged = [&](std::uint64_t offset, const std::string& what) {
    return absl::DataLossError(absl::StrCat("flight is damaged at byte ", offset, ": ", what));
  };
  const std::uint64_t start = s.offset;
  if (s.offset == s.size) {
    s.truncated = s.truncated || !s.closed;
    return false;
  }
  if (s.closed) return damaged(start, "bytes follow the closing record");
  flight::Heading heading;
  if (s.size - s.offset < sizeof heading) {
    s.truncated = true;
    return false;
  }
  if (s.Read(&heading, sizeof heading) != sizeof heading) {
    return damaged(start, "the file cannot be read");
  }
  if (!flight::HeadingIntact(heading)) {
    return damaged(start, "the heading's checksum is wrong");
  }
  if (heading.size > flight::kMaxPayload) return damaged(start, "a record is too long");
  if (heading.size > s.size - s.offset) {
    s.offset = start;  // further calls end here, too
    s.truncated = true;
    if (s.file != nullptr) (void)std::fseek(s.file, static_cast<long>(start), SEEK_SET);
    return false;
  }
  s.payload.resize(heading.size);
  if (s.Read(s.payload.data(), heading.size) != heading.size) {
    return damaged(start, "the file cannot be read");
  }
  if (!flight::PayloadIntact(heading, s.payload)) {
    return damaged(start, "a record's checksum is wrong");
  }
  const absl::Status status = flight::DecodeRecord(heading, s.payload, s.info, record);
  if (!status.ok()) return damaged(start, std::string(status.message()));
  record.offset = start;
  if (record.kind == FlightRecordKind::kCheckpoint && s.records != 0) {
    return damaged(start, "a checkpoint that is not the first record");
  }
  if (record.kind == FlightRecordKind::kClose && record.records != s.records) {
    return damaged(start, absl::StrCat("it was closed after ", record.records, " records, but has ",
                                       s.records));
  }
  ++s.records;
  s.closed = record.kind == FlightRecordKind::kClose;
  return true;
}

absl::Status FlightReader::Rewind() {
  State& s = *state_;
  if (s.file != nullptr && std::fseek(s.file, static_cast<long>(s.first_record), SEEK_SET) != 0) {
    return absl::DataLossError(absl::StrCat("flight cannot be rewound: ", std::strerror(errno)));
  }
  s.offset = s.first_record;
  s.records = 0;
  s.closed = false;
  s.truncated = false;
  return absl::OkStatus();
}

}  // namespace waymark
