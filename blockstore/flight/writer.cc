#include "blockstore/flight/writer.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/flight/encoder.h"
#include "blockstore/flight/format.h"

namespace waymark {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{1} << 20;

// Collects records in memory and, if there is a file, writes them a megabyte at a time.
class BufferedOutput final : public flight::RecordOutput {
 public:
  explicit BufferedOutput(std::FILE* file) : file_(file) {}
  ~BufferedOutput() override {
    if (file_ != nullptr) std::fclose(file_);
  }

  std::uint8_t* Reserve(std::size_t bytes) override {
    if (closed_) return nullptr;
    used_ = buffer_.size();
    buffer_.resize(used_ + bytes);
    return reinterpret_cast<std::uint8_t*>(buffer_.data() + used_);
  }
  void Commit() override {
    size_.fetch_add(buffer_.size() - used_, std::memory_order_relaxed);
    if (file_ != nullptr && buffer_.size() >= kFlushBytes) Flush();
  }
  void AppendRaw(const std::string& bytes) {
    buffer_ += bytes;
    size_.fetch_add(bytes.size(), std::memory_order_relaxed);
  }
  // Closes the file. Returns 0, or the errno of the first write that failed.
  int Finish() {
    closed_ = true;
    if (file_ != nullptr) {
      Flush();
      if (std::fclose(file_) != 0 && error_ == 0) error_ = errno;
      file_ = nullptr;
    }
    return error_;
  }
  [[nodiscard]] const std::string& buffer() const { return buffer_; }
  [[nodiscard]] std::uint64_t size() const { return size_.load(std::memory_order_relaxed); }

 private:
  void Flush() {
    if (error_ == 0 && std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size()) {
      error_ = errno != 0 ? errno : EIO;
    }
    buffer_.clear();
  }

  std::FILE* file_;
  std::string buffer_;
  std::size_t used_ = 0;
  std::atomic<std::uint64_t> size_{0};
  bool closed_ = false;
  int error_ = 0;
};

}  // namespace

struct FlightWriter::State {
  State(const FlightInfo& info, std::FILE* file, std::string name)
      : output(file), encoder(info, &output), path(std::move(name)) {
    output.AppendRaw(flight::EncodeHead(info));
  }
  BufferedOutput output;
  flight::FlightEncoder encoder;
  std::string path;
  bool closed = false;
  int error = 0;
};

FlightWriter::FlightWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}

FlightWriter::~FlightWriter() {
  (void)Close();
}

absl::StatusOr<std::unique_ptr<FlightWriter>> FlightWriter::Open(const std::string& path,
                                                                 const FlightInfo& info) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("flight file '", path, "' cannot be written: ", std::strerror(errno)));
  }
  return std::unique_ptr<FlightWriter>(new FlightWriter(std::make_unique<State>(info, file, path)));
}

std::unique_ptr<FlightWriter> FlightWriter::InMemory(const FlightInfo& info) {
  return std::unique_ptr<FlightWriter>(
      new FlightWriter(std::make_unique<State>(info, nullptr, "memory")));
}

FlightSink* FlightWriter::sink() {
  return &state_->encoder;
}

absl::Status FlightWriter::Close() {
  if (!state_->closed) {
    state_->closed = true;
    state_->encoder.Close(/*complete=*/true);
    const MutexLock lock(state_->encoder.mutex());
    state_->error = state_->output.Finish();
  }
  if (state_->error == 0) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("flight file '", state_->path,
                                         "' could not be written: ", std::strerror(state_->error)));
}

const std::string& FlightWriter::bytes() const {
  return state_->output.buffer();
}
std::uint64_t FlightWriter::size() const {
  return state_->output.size();
}

}  // namespace waymark
