#include "blockstore/flight/recorder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/flight/encoder.h"
#include "blockstore/flight/format.h"
#include "blockstore/flight/record.h"
#include "blockstore/flight/replay.h"
#include "blockstore/fork_guard.h"
#include "blockstore/thread.h"

namespace waymark {
namespace {

constexpr std::uint64_t kSegments = 8;
// Full segments that are kept, besides the one being written. The other three are slack: a burst of
// steps may fill them before the thread wakes.
constexpr std::uint64_t kKept = 4;
constexpr std::size_t kMinRing = 32 * 1024;

// The ring. Segment `n` is at n % kSegments; segments [base, head] are in use, head is being
// written.
class RingOutput final : public flight::RecordOutput {
 public:
  enum class Stop : int { kNo = 0, kTooLong, kOverrun };

  explicit RingOutput(std::size_t ring_bytes)
      : segment_bytes_(ring_bytes / kSegments), ring_(segment_bytes_ * kSegments) {}

  // Called under the encoder's lock, as Commit is.
  std::uint8_t* Reserve(std::size_t bytes) override {
    if (stop_.load(std::memory_order_relaxed) != Stop::kNo) return nullptr;
    if (bytes > segment_bytes_) {
      stop_.store(Stop::kTooLong, std::memory_order_relaxed);
      return nullptr;
    }
    std::uint64_t head = head_.load(std::memory_order_relaxed);
    if (used_[head % kSegments] + bytes > segment_bytes_) {
      if (head + 1 - base_.load(std::memory_order_acquire) >= kSegments) {
        stop_.store(Stop::kOverrun, std::memory_order_relaxed);
        return nullptr;
      }
      ++head;
      used_[head % kSegments] = 0;
      head_.store(head, std::memory_order_release);
      replay_due.store(true, std::memory_order_release);
      wake.notify_one();
    }
    pending_ = bytes;
    return segment(head) + used_[head % kSegments];
  }
  void Commit() override { used_[head_.load(std::memory_order_relaxed) % kSegments] += pending_; }

  // The records of segment `number`, in [base, head); of `head` only under the encoder's lock.
  [[nodiscard]] std::span<const std::uint8_t> Content(std::uint64_t number) {
    return {segment(number), used_[number % kSegments]};
  }
  [[nodiscard]] std::uint64_t base() const { return base_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t head() const { return head_.load(std::memory_order_acquire); }
  // Frees the oldest segment, which may then be overwritten.
  void Free() { base_.fetch_add(1, std::memory_order_release); }
  [[nodiscard]] Stop stop() const { return stop_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t segment_bytes() const { return segment_bytes_; }

  std::atomic<bool> replay_due{false};
  std::condition_variable wake;

 private:
  [[nodiscard]] std::uint8_t* segment(std::uint64_t number) {
    return ring_.data() + (number % kSegments) * segment_bytes_;
  }

  const std::size_t segment_bytes_;
  std::vector<std::uint8_t> ring_;
  std::array<std::size_t, kSegments> used_{};
  std::atomic<std::uint64_t> base_{0};
  std::atomic<std::uint64_t> head_{0};
  std::atomic<Stop> stop_{Stop::kNo};
  std::size_t pending_ = 0;
};

std::uint64_t CountRecords(std::span<const std::uint8_t> bytes) {
  std::uint64_t records = 0;
  while (bytes.size() >= sizeof(flight::Heading)) {
    flight::Heading heading;
    std::memcpy(&heading, bytes.data(), sizeof heading);
    bytes = bytes.subspan(sizeof heading + heading.size);
    ++records;
  }
  return records;
}

absl::Status Forked() {
  return absl::FailedPreconditionError(
      "a flight recorder must be used in the process that created it; this is a forked child");
}

}  // namespace

struct FlightRecorder::State {
  State(const FlightInfo& flight_info, std::size_t ring_bytes,
        std::unique_ptr<flight::FlightReplay> own, LogCallback log_lines, ForkGuard fork_guard)
      : info(flight_info),
        ring(ring_bytes),
        encoder(info, &ring),
        log(log_lines),
        guard(std::move(fork_guard)),
        replay(std::move(own)) {}
  ~State() {
    if (!thread.joinable()) return;
    stopping.store(true, std::memory_order_release);
    ring.wake.notify_one();
    thread.join();
  }

  // Applies records of the ring to the replay: `apply` does. The failure of an exception is kept.
  template <class Apply>
  absl::Status Replay(const Apply& apply) noexcept;
  absl::Status Fail(absl::Status status);
  absl::Status ReplayOldestLocked();
  absl::Status ReplayOldSegments();
  absl::Status ReplaySegment(std::span<const std::uint8_t> bytes);
  absl::Status CheckStore();
  void Run() noexcept;
  std::string WhyStopped();
  void LogStop() noexcept;

  const FlightInfo info;
  RingOutput ring;
  flight::FlightEncoder encoder;
  const LogCallback log;
  const ForkGuard guard;
  std::mutex replay_mutex;  // guards what is below; never taken by the sink
  std::unique_ptr<flight::FlightReplay> replay;
  // The records of a step whose last rows are in the ring: they follow the checkpoint.
  std::string unfinished;
  FlightRecord record;
  absl::Status failure;  // why the replay cannot go on
  std::atomic<bool> failed{false};
  std::atomic<bool> logged{false};
  std::atomic<bool> stopping{false};
  std::thread thread;
};

// A record may have been applied in part, so the replay does not go on.
template <class Apply>
absl::Status FlightRecorder::State::Replay(const Apply& apply) noexcept {
  try {
    return apply();
  } catch (...) {
    return Fail(ExceptionStatus("flight recorder: replaying records"));
  }
}

absl::Status FlightRecorder::State::Fail(absl::Status status) {
  failure = std::move(status);
  failed.store(true, std::memory_order_release);
  return failure;
}

absl::Status FlightRecorder::State::ReplayOldestLocked() {
  if (!failure.ok()) return failure;
  return Replay([this] { return ReplayOldSegments(); });
}

// Applies all segments but the newest kKept ones, and the one being written, to the replay.
absl::Status FlightRecorder::State::ReplayOldSegments() {
  while (ring.head() - ring.base() > kKept) {
    absl::Status status = ReplaySegment(ring.Content(ring.base()));
    if (status.ok()) status = CheckStore();
    if (!status.ok()) {
      return Fail(absl::Status(
          absl::IsResourceExhausted(status) ? status.code() : absl::StatusCode::kDataLoss,
          absl::StrCat("flight recorder: its store cannot replay the records: ",
                       std::string(status.message()))));
    }
    ring.Free();
  }
  return absl::OkStatus();
}

absl::Status FlightRecorder::State::ReplaySegment(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    flight::Heading heading;
    std::memcpy(&heading, bytes.data(), sizeof heading);
    const std::span<const std::uint8_t> whole = bytes.first(sizeof heading + heading.size);
    bytes = bytes.subspan(whole.size());
    // Reads do not change a store.
    if (heading.kind == static_cast<std::uint16_t>(FlightRecordKind::kRead)) continue;
    absl::Status status =
        flight::DecodeRecord(heading, whole.subspan(sizeof heading), info, record);
    if (status.ok()) status = replay->Apply(record, nullptr);
    if (!status.ok()) return status;
    if (!replay->awaits_rows()) {
      unfinished.clear();
    } else {
      unfinished.append(reinterpret_cast<const char*>(whole.data()), whole.size());
    }
  }
  return absl::OkStatus();
}

// The recorder's store goes on without memory, as the engine's does; its checkpoint would be wrong.
absl::Status FlightRecorder::State::CheckStore() {
  if (absl::Status status = replay->store().status(); !status.ok()) return status;
  if (replay->store().GetStats().snapshots_lost == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError("no memory for a snapshot");
}

void FlightRecorder::State::Run() noexcept {
  std::mutex idle;
  std::unique_lock<std::mutex> lock(idle);
  while (!stopping.load(std::memory_order_acquire)) {
    // The timeout covers a notification between the test and the wait: the sink takes no lock
    // here.
    ring.wake.wait_for(lock, std::chrono::milliseconds(20), [&] {
      return stopping.load(std::memory_order_acquire) ||
             ring.replay_due.exchange(false, std::memory_order_acquire);
    });
    {
      const std::lock_guard<std::mutex> replaying(replay_mutex);
      (void)ReplayOldestLocked();
    }
    if (failed.load(std::memory_order_relaxed) || ring.stop() != RingOutput::Stop::kNo) LogStop();
  }
}

void FlightRecorder::State::LogStop() noexcept {
  if (!log || logged.exchange(true)) return;
  try {
    log(LogLevel::kError, absl::StrCat("flight recorder: recording has stopped: ", WhyStopped()));
  } catch (...) {  // no memory for the line
  }
}

std::string FlightRecorder::State::WhyStopped() {
  if (failed.load(std::memory_order_acquire)) {
    const std::lock_guard<std::mutex> replaying(replay_mutex);
    return failure.message().empty() ? "no memory" : std::string(failure.message());
  }
  switch (ring.stop()) {
    case RingOutput::Stop::kNo:
      break;
    case RingOutput::Stop::kTooLong:
      return absl::StrCat("a record did not fit a segment of ", ring.segment_bytes(),
                          " bytes; ring_bytes must be larger");
    case RingOutput::Stop::kOverrun:
      return "the ring was full before its oldest segment was absorbed; ring_bytes must be larger";
  }
  return "";
}

absl::StatusOr<std::unique_ptr<FlightRecorder>> FlightRecorder::Create(
    const StoreOptions& options, const RecorderOptions& recorder) {
  return Guarded("FlightRecorder::Create", [&] { return Make(options, recorder); });
}

absl::StatusOr<std::unique_ptr<FlightRecorder>> FlightRecorder::Make(
    const StoreOptions& options, const RecorderOptions& recorder) {
  if (recorder.ring_bytes < kMinRing) {
    return absl::InvalidArgumentError(absl::StrCat("RecorderOptions.ring_bytes: must be at least ",
                                                   kMinRing, "; it is ", recorder.ring_bytes));
  }
  if (absl::Status status = options.shape.Validate(); !status.ok()) return status;
  if (absl::Status status = CheckCpus("RecorderOptions.cpus", recorder.cpus); !status.ok()) {
    return status;
  }
  const FlightInfo info = FlightInfo::Of(options, recorder.rows);
  absl::StatusOr<std::unique_ptr<flight::FlightReplay>> replay =
      flight::FlightReplay::Create(info, std::numeric_limits<std::uint64_t>::max(), /*audit=*/false,
                                   flight::FlightReplay::Voids::kRecorded);
  if (!replay.ok()) return replay.status();
  absl::StatusOr<ForkGuard> guard = ForkGuard::Create(0);
  if (!guard.ok()) return guard.status();
  auto state = std::make_unique<State>(info, recorder.ring_bytes, *std::move(replay), recorder.log,
                                       *std::move(guard));
  std::unique_ptr<FlightRecorder> made(new FlightRecorder(std::move(state)));
  if (recorder.background) {
    State* const s = made->state_.get();
    absl::StatusOr<std::thread> thread = StartThread("wm-flight", recorder.cpus, [s] { s->Run(); });
    if (!thread.ok()) return thread.status();
    s->thread = *std::move(thread);
  }
  return made;
}

FlightRecorder::FlightRecorder(std::unique_ptr<State> state) : state_(std::move(state)) {}
FlightRecorder::~FlightRecorder() {
  // The thread and the holders of the locks are in the parent.
  if (state_->guard.forked()) (void)state_.release();
}

FlightSink* FlightRecorder::sink() {
  return &state_->encoder;
}

absl::Status FlightRecorder::ReplayOldest() {
  if (state_->guard.forked()) return Forked();
  const std::lock_guard<std::mutex> lock(state_->replay_mutex);
  return state_->ReplayOldestLocked();
}

absl::Status FlightRecorder::DumpTo(std::string& out) {
  if (state_->guard.forked()) return Forked();
  const std::size_t before = out.size();
  absl::Status status = Guarded("flight recorder: a dump", [&] { return DumpRing(out); });
  if (!status.ok()) out.resize(before);
  return status;
}

absl::Status FlightRecorder::DumpRing(std::string& out) {
  State& s = *state_;
  const std::lock_guard<std::mutex> replaying(s.replay_mutex);
  if (!s.failure.ok()) return s.failure;
  // No segment is freed while replay_mutex is held, so full segments do not change.
  std::string records = s.unfinished;
  const std::uint64_t base = s.ring.base();
  std::uint64_t copied = base;
  const auto append = [&](std::uint64_t number) {
    const std::span<const std::uint8_t> content = s.ring.Content(number);
    records.append(reinterpret_cast<const char*>(content.data()), content.size());
  };
  for (; copied < s.ring.head(); ++copied)
    append(copied);
  bool complete = true;
  {
    const MutexLock lock(s.encoder.mutex());
    for (; copied <= s.ring.head(); ++copied)
      append(copied);
    complete = s.ring.stop() == RingOutput::Stop::kNo;
  }
  const std::span<const std::uint8_t> ahead(reinterpret_cast<const std::uint8_t*>(records.data()),
                                            records.size());
  std::string checkpoint;
  if (base > 0) {
    if (absl::Status status = s.replay->Save(checkpoint); !status.ok()) return status;
    if (checkpoint.size() > flight::kMaxPayload) {
      return absl::OutOfRangeError(absl::StrCat("flight recorder: a checkpoint has ",
                                                checkpoint.size(), " bytes; the most is ",
                                                flight::kMaxPayload));
    }
  }
  out += flight::EncodeHead(s.info);
  if (base > 0) {
    flight::AppendRecord(
        {.kind = FlightRecordKind::kCheckpoint,
         .bytes = {reinterpret_cast<const std::uint8_t*>(checkpoint.data()), checkpoint.size()}},
        out);
  }
  out += records;
  flight::AppendRecord({.kind = FlightRecordKind::kClose,
                        .records = CountRecords(ahead) + (base > 0 ? 1 : 0),
                        .complete = complete},
                       out);
  return absl::OkStatus();
}

absl::Status FlightRecorder::Dump(const std::string& path) {
  std::string bytes;
  if (absl::Status status = DumpTo(bytes); !status.ok()) return status;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  bool written = file != nullptr;
  if (file != nullptr) {
    written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    written = std::fclose(file) == 0 && written;
  }
  if (written) return absl::OkStatus();
  return absl::UnknownError(
      absl::StrCat("flight file '", path, "' could not be written: ", std::strerror(errno)));
}

std::string FlightRecorder::stopped() const {
  if (state_->guard.forked()) return std::string(Forked().message());
  return state_->WhyStopped();
}

}  // namespace waymark
