#include "blockstore/flight/recorder.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/exception_status.h"
#include "blockstore/flight/encoder.h"
#include "blockstore/flight/format.h"
#include "blockstore/flight/replay.h"
#include "blockstore/fork_guard.h"
#include "blockstore/invalid.h"
#include "blockstore/thread.h"
#include "blockstore/whole_file.h"

namespace waymark {
namespace {

constexpr std::uint64_t kSegments = 8;
// Full segments that are kept, besides the one being written. The other three are slack: a burst of
// steps may fill them before the thread wakes.
constexpr std::uint64_t kKept = 4;
constexpr std::size_t kMinRing = 32 * 1024;

using Bytes = std::span<const std::uint8_t>;

void AppendTo(std::string& out, Bytes bytes) {
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Takes the first record, heading included, from records of this process.
Bytes TakeRecord(Bytes& records, flight::Heading& heading) {
  std::memcpy(&heading, records.data(), sizeof heading);
  const Bytes record = records.first(sizeof heading + heading.size);
  records = records.subspan(record.size());
  return record;
}

absl::Status Forked() {
  return absl::FailedPreconditionError(
      "a flight recorder must be used in the process that created it; this is a forked child");
}

}  // namespace

// Records go into the ring. Segment `n` is at n % kSegments; segments [base, head] are in use, head
// is being written.
struct FlightRecorder::State final : flight::FlightEncoder {
  enum class Stop : int { kNo = 0, kTooLong, kOverrun };

  State(const FlightInfo& flight_info, std::size_t ring_bytes,
        std::unique_ptr<flight::FlightReplay> own, LogCallback log_lines, ForkGuard fork_guard)
      : FlightEncoder(flight_info),
        info(flight_info),
        segment_bytes(ring_bytes / kSegments),
        ring(segment_bytes * kSegments),
        log(log_lines),
        guard(std::move(fork_guard)),
        replay(std::move(own)) {}

  std::uint8_t* Reserve(std::size_t bytes) override;
  [[nodiscard]] std::uint8_t* segment(std::uint64_t number) {
    return ring.data() + (number % kSegments) * segment_bytes;
  }
  // The records of segment `number`, in [base, head); of `head` only under the encoder's lock.
  [[nodiscard]] Bytes Content(std::uint64_t number) {
    return {segment(number), used[number % kSegments]};
  }
  absl::Status ReplayOldestLocked() noexcept;
  absl::Status ReplayOldSegments();
  absl::Status ReplaySegment(Bytes records);
  void Run() noexcept;
  std::string WhyStopped();
  void LogStop() noexcept;

  const FlightInfo info;
  const std::size_t segment_bytes;
  std::vector<std::uint8_t> ring;
  std::array<std::size_t, kSegments> used{};
  std::atomic<std::uint64_t> base{0};
  std::atomic<std::uint64_t> head{0};
  std::atomic<Stop> stop{Stop::kNo};
  std::atomic<bool> replay_due{false};
  std::condition_variable wake;

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
  LibraryThread thread;
};

std::uint8_t* FlightRecorder::State::Reserve(std::size_t bytes) {
  if (stop.load(std::memory_order_relaxed) != Stop::kNo) return nullptr;
  if (bytes > segment_bytes) {
    stop.store(Stop::kTooLong, std::memory_order_relaxed);
    return nullptr;
  }
  std::uint64_t at = head.load(std::memory_order_relaxed);
  if (used[at % kSegments] + bytes > segment_bytes) {
    if (at + 1 - base.load(std::memory_order_acquire) >= kSegments) {
      stop.store(Stop::kOverrun, std::memory_order_relaxed);
      return nullptr;
    }
    ++at;
    used[at % kSegments] = 0;
    head.store(at, std::memory_order_release);
    replay_due.store(true, std::memory_order_release);
    wake.notify_one();
  }
  return segment(at) + std::exchange(used[at % kSegments], used[at % kSegments] + bytes);
}

// A record may have been applied in part, so the replay does not go on after a failure.
absl::Status FlightRecorder::State::ReplayOldestLocked() noexcept {
  if (!failure.ok()) return failure;
  failure = Guarded("flight recorder: replaying records", [this] { return ReplayOldSegments(); });
  if (!failure.ok()) failed.store(true, std::memory_order_release);
  return failure;
}

// Applies all segments but the newest kKept ones, and the one being written, to the replay.
absl::Status FlightRecorder::State::ReplayOldSegments() {
  while (head.load(std::memory_order_acquire) - base.load(std::memory_order_acquire) > kKept) {
    const absl::Status status = ReplaySegment(Content(base.load(std::memory_order_acquire)));
    if (!status.ok()) {
      return absl::Status(
          absl::IsResourceExhausted(status) ? status.code() : absl::StatusCode::kDataLoss,
          absl::StrCat("flight recorder: its store cannot replay the records: ", status.message()));
    }
    base.fetch_add(1, std::memory_order_release);  // it may be overwritten
  }
  return absl::OkStatus();
}

absl::Status FlightRecorder::State::ReplaySegment(Bytes records) {
  while (!records.empty()) {
    flight::Heading heading;
    const Bytes whole = TakeRecord(records, heading);
    // Reads do not change a store.
    if (heading.kind == static_cast<std::uint16_t>(FlightRecordKind::kRead)) continue;
    absl::Status status =
        flight::DecodeRecord(heading, whole.subspan(sizeof heading), info, record);
    if (status.ok()) status = replay->Apply(record, nullptr);
    if (!status.ok()) return status;
    if (!replay->awaits_rows()) {
      unfinished.clear();
    } else {
      AppendTo(unfinished, whole);
    }
  }
  // The recorder's store goes on without memory, as the engine's does; its checkpoint would be
  // wrong.
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
    wake.wait_for(lock, std::chrono::milliseconds(20), [&] {
      return stopping.load(std::memory_order_acquire) ||
             replay_due.exchange(false, std::memory_order_acquire);
    });
    {
      const std::lock_guard<std::mutex> replaying(replay_mutex);
      (void)ReplayOldestLocked();
    }
    if (failed.load(std::memory_order_relaxed) || stop.load(std::memory_order_relaxed) != Stop::kNo)
      LogStop();
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
  switch (stop.load(std::memory_order_relaxed)) {
    case Stop::kNo:
      break;
    case Stop::kTooLong:
      return absl::StrCat("a record did not fit a segment of ", segment_bytes,
                          " bytes; ring_bytes must be larger");
    case Stop::kOverrun:
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
    return Invalid("RecorderOptions.ring_bytes: must be at least ", kMinRing, "; it is ",
                   recorder.ring_bytes);
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
  auto state = std::make_shared<State>(
      info, recorder.ring_bytes, *std::move(replay),
      recorder.log.function != nullptr ? recorder.log : options.log, *std::move(guard));
  std::unique_ptr<FlightRecorder> made(new FlightRecorder(std::move(state)));
  if (recorder.background) {
    State* const s = made->state_.get();
    absl::StatusOr<LibraryThread> thread = LibraryThread::Start(
        "wm-flight", recorder.cpus, made->state_, [s] { s->Run(); },
        [s] {
          s->stopping.store(true, std::memory_order_release);
          s->wake.notify_one();
        });
    if (!thread.ok()) return thread.status();
    s->thread = *std::move(thread);
  }
  return made;
}

FlightRecorder::FlightRecorder(std::shared_ptr<State> state) : state_(std::move(state)) {}
FlightRecorder::~FlightRecorder() {
  (void)state_->thread.End();
  // The holders of the locks are in the parent.
  if (state_->guard.forked()) new std::shared_ptr<State>(std::move(state_));  // never destroyed
}

std::shared_ptr<FlightSink> FlightRecorder::sink() {
  return state_;
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
  std::string records;
  const std::uint64_t base = s.base.load(std::memory_order_acquire);
  if (base > 0) {
    std::string checkpoint;
    if (absl::Status status = s.replay->Save(checkpoint); !status.ok()) return status;
    if (checkpoint.size() > flight::kMaxPayload) {
      return absl::OutOfRangeError(absl::StrCat("flight recorder: a checkpoint has ",
                                                checkpoint.size(), " bytes; the most is ",
                                                flight::kMaxPayload));
    }
    flight::AppendRecord(
        {.kind = FlightRecordKind::kCheckpoint, .bytes = flight::BytesOf(checkpoint)}, records);
  }
  records += s.unfinished;
  std::uint64_t copied = base;
  for (; copied < s.head.load(std::memory_order_acquire); ++copied)
    AppendTo(records, s.Content(copied));
  bool complete = true;
  {
    const MutexLock lock(s.mutex());
    for (; copied <= s.head.load(std::memory_order_acquire); ++copied)
      AppendTo(records, s.Content(copied));
    complete = s.stop.load(std::memory_order_relaxed) == State::Stop::kNo;
  }
  FlightEntry close{.kind = FlightRecordKind::kClose, .complete = complete};
  flight::Heading heading;
  for (Bytes rest = flight::BytesOf(records); !rest.empty(); ++close.records)
    (void)TakeRecord(rest, heading);
  flight::AppendRecord(close, records);
  out += flight::EncodeHead(s.info) + records;
  return absl::OkStatus();
}

absl::Status FlightRecorder::Dump(const std::string& path) {
  std::string bytes;
  if (absl::Status status = DumpTo(bytes); !status.ok()) return status;
  const absl::Status status = WriteWholeFile(path, bytes);
  return status.ok() ? status : absl::UnknownError(absl::StrCat("flight file ", status.message()));
}

std::string FlightRecorder::stopped() const {
  if (state_->guard.forked()) return std::string(Forked().message());
  return state_->WhyStopped();
}

}  // namespace waymark
