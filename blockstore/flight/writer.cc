#include "blockstore/flight/writer.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/flight/encoder.h"
#include "blockstore/flight/format.h"
#include "blockstore/invalid.h"

namespace waymark {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{1} << 20;

}  // namespace

// Collects records in memory and, if there is a file, writes them a megabyte at a time.
struct FlightWriter::State final : flight::FlightEncoder {
  State(const FlightInfo& info, std::FILE* to, std::string name)
      : FlightEncoder(info), file(to), path(std::move(name)), buffer(flight::EncodeHead(info)) {}
  ~State() override {
    if (file != nullptr) std::fclose(file);
  }

  std::uint8_t* Reserve(std::size_t bytes) override {
    if (closed) return nullptr;
    if (file != nullptr && buffer.size() >= kFlushBytes) Flush();
    const std::size_t used = buffer.size();
    buffer.resize(used + bytes);
    return reinterpret_cast<std::uint8_t*>(buffer.data() + used);
  }
  void Flush() {
    if (error == 0 && std::fwrite(buffer.data(), 1, buffer.size(), file) != buffer.size()) {
      error = errno != 0 ? errno : EIO;
    }
    buffer.clear();
  }

  std::FILE* file;  // null: a flight in memory, or closed
  const std::string path;
  std::string buffer;
  bool closed = false;
  int error = 0;  // the errno of the first write that failed
};

FlightWriter::FlightWriter(std::shared_ptr<State> state) : state_(std::move(state)) {}

FlightWriter::~FlightWriter() {
  (void)Close();
}

absl::StatusOr<std::unique_ptr<FlightWriter>> FlightWriter::Open(const std::string& path,
                                                                 const FlightInfo& info) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return Invalid("flight file '", path, "' cannot be written: ", std::strerror(errno));
  }
  return std::unique_ptr<FlightWriter>(new FlightWriter(std::make_shared<State>(info, file, path)));
}

std::unique_ptr<FlightWriter> FlightWriter::InMemory(const FlightInfo& info) {
  return std::unique_ptr<FlightWriter>(
      new FlightWriter(std::make_shared<State>(info, nullptr, "")));
}

std::shared_ptr<FlightSink> FlightWriter::sink() {
  return state_;
}

absl::Status FlightWriter::Close() {
  State& s = *state_;
  if (!s.closed) {
    s.Close(/*complete=*/true);
    const MutexLock lock(s.mutex());
    s.closed = true;
    if (s.file != nullptr) {
      s.Flush();
      if (std::fclose(std::exchange(s.file, nullptr)) != 0 && s.error == 0) s.error = errno;
    }
  }
  if (s.error == 0) return absl::OkStatus();
  return absl::UnknownError(
      absl::StrCat("flight file '", s.path, "' could not be written: ", std::strerror(s.error)));
}

const std::string& FlightWriter::bytes() const {
  return state_->buffer;
}

}  // namespace waymark
