#include "blockstore/store/lander.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "blockstore/store/clock.h"
#include "blockstore/thread.h"
#include "blockstore/timeout.h"

namespace waymark {
namespace {

constexpr int kSpins = 2000;                           // checks for work before napping
constexpr auto kNap = std::chrono::microseconds(500);  // naps add at most this to the lag
constexpr std::uint32_t kNaps = 200;                   // naps without work before sleeping
constexpr int kEagerLooks = 64;                        // before the first kPoll
constexpr auto kPoll = std::chrono::microseconds(20);  // between looks at a device,
constexpr int kManyLooks = 5000;                       // and after so many (0.1 s) a nap
constexpr auto kDoze = std::chrono::milliseconds(100);
constexpr std::size_t kFaultStep = std::size_t{1} << 20;
constexpr std::size_t kFaultAhead = std::size_t{32} << 20;
constexpr std::size_t kReclaim = 4;  // snapshots reclaimed per hold of the lock
constexpr std::size_t kRecordsPerPiece = 32;
// Applied before the thread does anything else: more records may come as fast as it applies.
constexpr std::size_t kRecordsPerTurn = 8 * kRecordsPerPiece;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Lander::Lander(const StoreOptions& options, StoreCore& core, Mutex& mutex, Pages& pages,
               Stats& stats, StoreLog& log, LogApplier& applier)
    : options_(options),
      core_(core),
      mutex_(mutex),
      pages_(pages),
      stats_(stats),
      log_(log),
      applier_(applier),
      audit_(options, core, mutex, pages, stats),
      writer_(options, core, mutex, pages, audit_, stats),
      told_(options, core, log),
      caller_lands_(options.landing != Landing::kThread) {}

// ---- the thread

absl::Status Lander::Start(std::shared_ptr<void> owner) {
  absl::StatusOr<LibraryThread> thread = LibraryThread::Start(
      "wm-landing", options_.landing_cpus, std::move(owner), [this] { Loop(); },
      [this] {
        stop_.store(true, std::memory_order_seq_cst);
        Wake();
      });
  if (thread.ok()) thread_ = *std::move(thread);
  return thread.status();
}

void Lander::Wake() {
  work_.fetch_add(1, std::memory_order_seq_cst);
  WakeForRecords();
}

void Lander::WakeForRecords() {
  if (!wake_flag_.ShouldWake()) return;
  const std::lock_guard<std::mutex> lock(wake_mutex_);
  wake_cv_.notify_one();
}

// Behind a step that waits for its verdict, a record is no work.
bool Lander::Idle(std::uint32_t seen, std::uint64_t verdicts) const {
  return work_.load(std::memory_order_seq_cst) == seen && log_.verdicts() == verdicts &&
         (waits_ == Waits::kForVerdict || !log_.HasRecords());
}

// To wake a sleeping thread costs the engine's thread 10 us or more, and a forward takes
// milliseconds. So the landing thread naps for a while before it sleeps: a nap ends by itself.
void Lander::SleepUntilWork(std::uint32_t seen, std::uint64_t verdicts) {
  if (waits_ == Waits::kForIds || told_.waiting()) {
    // A copy takes microseconds: looks at once at first, then now and then.
    if (looks_ < kManyLooks) ++looks_;
    if (looks_ > kEagerLooks) {
      std::this_thread::sleep_for(looks_ < kManyLooks ? std::chrono::nanoseconds(kPoll) : kNap);
    }
    return;
  }
  for (int spin = 0; spin < kSpins && !dozing_; ++spin) {
    if (!Idle(seen, verdicts)) return;
    Pause();
  }
  for (std::uint32_t nap = 0; nap < kNaps && !dozing_; ++nap) {
    std::this_thread::sleep_for(kNap);
    if (!Idle(seen, verdicts)) return;
  }
  std::unique_lock<std::mutex> lock(wake_mutex_);
  wake_flag_.Announce();
  // Wakes up now and then for snapshots that are released while the engine is idle.
  dozing_ = !wake_cv_.wait_for(lock, kDoze, [&] { return !Idle(seen, verdicts); });
  wake_flag_.Withdraw();
}

void Lander::Loop() noexcept {
  UseShortTimeSlices();
  while (!stop_.load(std::memory_order_seq_cst)) {
    const std::uint32_t seen = work_.load(std::memory_order_seq_cst);
    const std::uint64_t verdicts = log_.verdicts();
    bool worked = ApplyLog(kRecordsPerTurn) > 0;
    Housekeeping();
    // Spare pages are touched only when they are used.
    const std::size_t used = pages_touched_ * core_.shape.page_bytes();
    const std::size_t unspared = options_.num_pages * core_.shape.page_bytes();
    const std::size_t ahead = std::max(used, std::min(used + kFaultAhead, unspared));
    if (core_.memory.Prefault(ahead, kFaultStep)) worked = true;
    if (worked) {
      dozing_ = false;
      looks_ = 0;
    } else {
      SleepUntilWork(seen, verdicts);
    }
  }
}

// ---- the log

std::size_t Lander::ApplyLog(std::size_t records) {
  waits_ = Waits::kForNothing;
  std::size_t applied = 0;
  while (applied < records) {
    if (core_.failure.failed()) Settle();
    const std::size_t most = std::min(records - applied, kRecordsPerPiece);
    std::size_t piece = 0;
    StepRecord* front = nullptr;
    {
      const MutexLock lock(mutex_);
      piece = applier_.Apply(most);
      front = applier_.front();
    }
    applied += piece;
    if (piece > 0) core_.NotifyProgress();  // a snapshot may have been applied
    const bool compared = ComparePairs();
    if (front == nullptr) {
      if (piece < most && !compared) break;
    } else if (applied < records) {
      if (!TryApplyFront(*front)) break;
      ++applied;
    }
  }
  // A caller that lands has its own order, and its calls allocate nothing.
  if (waits_ != Waits::kForNothing && options_.landing == Landing::kThread) FetchAhead();
  if (told_.any_abandoned()) told_.ReturnAbandoned(/*all=*/false);
  return applied;
}

bool Lander::LandNext(std::uint64_t only_step) noexcept {
  if (options_.landing == Landing::kCaller) ApplyLog();
  StepRecord* front = nullptr;
  {
    const MutexLock lock(mutex_);
    applier_.Apply(0);
    front = applier_.front();
  }
  if (core_.failure.failed() || front == nullptr) return false;
  if (front->verdict.load(std::memory_order_acquire) != Verdict::kReady) {
    FetchAhead();  // the caller may be short of buffers
    return false;
  }
  if (only_step != 0 && front->step != only_step) return false;
  caller_lands_ = false;
  while (!TryApplyFront(*front)) {
    FetchAhead();
    std::this_thread::sleep_for(kPoll);
  }
  caller_lands_ = true;
  if (options_.landing == Landing::kCaller) ApplyLog();
  Housekeeping();
  return true;
}

bool Lander::ApplyAll(std::chrono::steady_clock::time_point deadline) noexcept {
  const bool lands = std::exchange(caller_lands_, false);
  for (;;) {
    ApplyLog();
    Housekeeping();
    if (!log_.HasRecords() || waits_ == Waits::kForVerdict) break;
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(kPoll);
  }
  caller_lands_ = lands;
  return !log_.HasRecords();
}

void Lander::Finish() noexcept {
  if (!std::exchange(finishing_, true)) {
    give_up_at_ = std::chrono::steady_clock::now() + Clamped(options_.teardown_timeout);
  }
  while (!ApplyAll(std::chrono::steady_clock::time_point::max())) {
  }
  told_.ReturnAbandoned(/*all=*/true);
  if (steps_given_up_ == 0) return;
  Log(LogLevel::kError, [this] {
    const double seconds = std::chrono::duration<double>(options_.teardown_timeout).count();
    return absl::StrCat("the store was destroyed, and after ", seconds, " s the ids of ",
                        steps_given_up_, " submitted steps (the first one is step ",
                        first_given_up_, ") had not arrived: their rows are not captured");
  });
  steps_given_up_ = 0;
}

// ---- a step

bool Lander::TryApplyFront(StepRecord& front) noexcept {
  Verdict verdict = front.verdict.load(std::memory_order_acquire);
  if (verdict == Verdict::kOpen) {
    if (!finishing_) {
      core_.waiting_step->number.store(front.step, std::memory_order_relaxed);
      waits_ = Waits::kForVerdict;
      NoteOverdue(front, front.told_at, "it was told: it is open, and all behind it waits");
      return false;
    }
    verdict = Verdict::kLost;
  }
  if (verdict == Verdict::kReady && caller_lands_ && !core_.failure.failed()) {
    waits_ = Waits::kForCaller;
    return false;
  }
  StepRows* const own = verdict == Verdict::kReady ? front.rows : nullptr;
  FetchedRows* const fetched = told_.FetchedOfFront();
  StepIds ids(fetched != nullptr ? fetched : own);
  bool lost = false;
  if (!core_.failure.failed() && !IdsAreThere(front, ids, &lost)) {
    core_.waiting_step->number.store(front.step, std::memory_order_relaxed);
    waits_ = Waits::kForIds;
    return false;
  }
  if (lost) ids = StepIds();
  if (!core_.failure.failed()) {
    try {
      ApplyStep(verdict, ids);
    } catch (...) {
      core_.failure.Catch("applying a step");
    }
  }
  if (ids.threw()) core_.exceptions.fetch_add(1, std::memory_order_relaxed);
  // Before the log can be seen to be empty, as WaitIdle promises.
  if (!lost && fetched == nullptr) core_.CallDone(own);
  told_.PopFront();
  core_.waiting_step->number.store(0, std::memory_order_relaxed);
  {
    const MutexLock lock(mutex_);
    applier_.PopFront();
  }
  core_.NotifyProgress();
  try {
    if (lost) told_.Abandon(own);
    audit_.LogFindings();
  } catch (...) {
    core_.failure.Catch("logging a finding of the audit");
  }
  (void)ComparePairs();
  return true;
}

bool Lander::IdsAreThere(const StepRecord& front, StepIds& ids, bool* lost) {
  if (ids.Poll()) return true;
  const std::uint64_t waited = NoteOverdue(front, front.decided_at, "its Submit");
  const auto timeout = static_cast<std::uint64_t>(Clamped(options_.ids_timeout).count());
  if (finishing_ && std::chrono::steady_clock::now() >= give_up_at_) {
    *lost = true;
    if (steps_given_up_++ == 0) first_given_up_ = front.step;
  } else if (options_.ids_timeout.count() != 0 && waited >= timeout) {
    *lost = true;
    Log(LogLevel::kError, [&] {
      return absl::StrCat("the ids of step ", front.step, " have not arrived ",
                          static_cast<double>(waited / 1'000'000) / 1e3,
                          " s after its Submit: its rows are not captured");
    });
  }
  return *lost;
}

std::uint64_t Lander::NoteOverdue(const StepRecord& record, std::uint64_t since, const char* what) {
  const std::uint64_t waited = ticks_.NanosecondsSince(since);
  const auto limit = static_cast<std::uint64_t>(options_.overdue_after.count());
  if (overdue_ == record.step || limit == 0 || waited < limit) return waited;
  overdue_ = record.step;
  {
    const MutexLock lock(mutex_);
    ++stats_.steps_overdue;
  }
  Log(LogLevel::kWarning, [&] {
    return absl::StrCat("the ids of step ", record.step, " have not arrived ",
                        static_cast<double>(waited / 1'000'000) / 1e3, " s after ", what);
  });
  return waited;
}

void Lander::ApplyStep(Verdict verdict, StepIds& ids) {
  StepToWrite step;
  {
    const MutexLock lock(mutex_);
    step = applier_.Begin(verdict);
  }
  if (verdict != Verdict::kNotRun) writer_.Write(step, ids);
  const MutexLock lock(mutex_);
  applier_.End(step, verdict);
  audit_.Conclude();
}

void Lander::FetchAhead() noexcept {
  try {
    if (told_.FetchAhead()) looks_ = 0;
  } catch (...) {  // no memory: the rows stay where they are
  }
}

// ---- what is missing

void Lander::WarnOfLosses() {
  std::array<std::uint64_t, kLosses> counts;
  std::uint32_t detached = 0;
  {
    const MutexLock lock(mutex_);
    const std::uint64_t others = stats_.steps_dropped - stats_.steps_without_room;
    // Steps that are open at the end are dropped, too.
    counts = {stats_.no_page,
              stats_.steps_without_room,
              finishing_ ? 0 : others,
              stats_.log_losses,
              stats_.releases_below_zero,
              stats_.blocks_without_users,
              core_.exceptions.load(std::memory_order_relaxed)};
    detached = pages_.pool().detached();
  }
  const auto text = [&](std::size_t loss) -> std::string {
    switch (loss) {
      case kNoPage:
        return absl::StrCat(
            "no page was free, and rows are missing (capacity). Of ", options_.num_pages, " + ",
            *options_.spare_pages, " spare pages, snapshots alone hold ", detached,
            ": read and release snapshots sooner, or raise spare_pages; if snapshots hold few "
            "pages, raise num_pages");
      case kFull:
        return absl::StrCat("a step was dropped, because ", options_.max_steps_in_flight,
                            " were in flight (without ids, or with ids that the store has not "
                            "read yet): its rows are missing (capacity). Raise "
                            "max_steps_in_flight, or wait for the store (WaitIdle) in a loop "
                            "whose forward takes no time");
      case kNoBuffer:
        return "a step was dropped, because its session had no free buffer (num_buffers), its "
               "device failed, or by the engine: its rows are missing (capacity)";
      case kLostRecords:
        return "all blocks lost their rows (capacity): the log was full, because this thread got "
               "no CPU, or events were lost (LoseRows)";
      case kReleased:
        return "a block without users was released: a bind or retain was not told, or a release "
               "was told twice";
      case kTakenLate:
        return "rows of a block without users were taken, and are missing (released): they were "
               "taken after the block was released, or a bind or retain was not told";
      default:
        return "a call of a step's StepRows threw: its rows are not captured";
    }
  };
  for (std::size_t loss = 0; loss < kLosses; ++loss) {
    if (counts[loss] == 0 || std::exchange(logged_losses_[loss], true)) continue;
    Log(loss == kThrew ? LogLevel::kError : LogLevel::kWarning,
        [&] { return text(loss) + ". Logged once"; });
  }
}

// ---- failures

void Lander::Settle() noexcept {
  {
    const MutexLock lock(mutex_);
    SnapshotState* state = nullptr;
    while (core_.released.try_dequeue(state))
      core_.FreeTicket(state);
  }
  if (!std::exchange(logged_failure_, true)) {
    Log(LogLevel::kError, [&] { return std::string(core_.failure.text()); });
  }
}

template <class Text>
void Lander::Log(LogLevel level, const Text& text) const noexcept {
  try {
    if (options_.log) options_.log(level, text());
  } catch (...) {  // no memory for the line
  }
}

void Lander::Housekeeping() noexcept {
  if (core_.failure.failed()) return Settle();
  try {
    for (bool more = true; more;) {
      const MutexLock lock(mutex_);
      more = pages_.ReclaimSnapshots(kReclaim);
    }
    WarnOfLosses();
    const MutexLock lock(mutex_);
    pages_touched_ = pages_.pool().pages_touched();
  } catch (...) {
    core_.failure.Catch("taking back snapshots");
  }
}

bool Lander::ComparePairs() noexcept {
  if (core_.failure.failed()) return false;
  try {
    return audit_.ComparePairs();
  } catch (...) {
    core_.failure.Catch("comparing pages");
    return false;
  }
}

}  // namespace waymark
