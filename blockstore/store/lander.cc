#include "blockstore/store/lander.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
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
// Applied before the thread looks for steps to land: more records may come as fast as it applies.
constexpr std::size_t kRecordsPerTurn = 8 * kRecordsPerPiece;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Lander::Lander(const StoreOptions& options, StoreCore& core, Mutex& mutex, Pages& pages,
               Steps& steps, Stats& stats, StoreLog* log, LogApplier* applier)
    : options_(options),
      core_(core),
      mutex_(mutex),
      pages_(pages),
      steps_(steps),
      stats_(stats),
      log_(log),
      applier_(applier),
      audit_(options, core, mutex, pages, steps, stats),
      experts_(options.expert_versions),
      destinations_(kLandingChunk),
      verdicts_(kLandingChunk) {
  running_copies_.reserve(Pages::kMaxCopies);
  candidates_.reserve(options.max_steps_in_flight);
  sides_.reserve(std::max<std::size_t>(256, options.max_step_rows / 4));
}

// ---- the thread

absl::Status Lander::Start() {
  absl::StatusOr<std::thread> thread =
      StartThread("wm-landing", options_.landing_cpus, [this] { Loop(); });
  if (thread.ok()) thread_ = *std::move(thread);
  return thread.status();
}

void Lander::Stop() {
  if (!has_thread()) return;
  stop_.store(true, std::memory_order_seq_cst);
  Wake();
  thread_.join();
}

void Lander::GiveUpAfter(std::chrono::nanoseconds timeout) {
  give_up_at_ = std::chrono::steady_clock::now() + Clamped(timeout);
}

void Lander::LogGivenUp() const noexcept {
  if (steps_given_up_ == 0) return;
  Log(LogLevel::kError, [this] {
    const double seconds = std::chrono::duration<double>(options_.teardown_timeout).count();
    return absl::StrCat("the store was destroyed, and after ", seconds, " s the ids of ",
                        steps_given_up_, " submitted steps (the first one is step ",
                        first_given_up_, ") had not arrived: their rows are not captured");
  });
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

bool Lander::Idle(std::uint32_t seen) const {
  return work_.load(std::memory_order_seq_cst) == seen && (log_ == nullptr || !log_->HasRecords());
}

// To wake a sleeping thread costs the engine's thread 10 us or more, and a forward takes
// milliseconds. So the landing thread naps for a while before it sleeps: a nap ends by itself.
void Lander::SleepUntilWork(std::uint32_t seen) {
  if (polling_) {
    // A copy takes microseconds: looks at once at first, then now and then.
    if (looks_ < kManyLooks) ++looks_;
    if (looks_ > kEagerLooks) {
      std::this_thread::sleep_for(looks_ < kManyLooks ? std::chrono::nanoseconds(kPoll) : kNap);
    }
    return;
  }
  for (int spin = 0; spin < kSpins && !dozing_; ++spin) {
    if (!Idle(seen)) return;
    Pause();
  }
  for (std::uint32_t nap = 0; nap < kNaps && !dozing_; ++nap) {
    std::this_thread::sleep_for(kNap);
    if (!Idle(seen)) return;
  }
  std::unique_lock<std::mutex> lock(wake_mutex_);
  wake_flag_.Announce();
  // Wakes up now and then for snapshots that are released while the engine is idle.
  dozing_ = !wake_cv_.wait_for(lock, kDoze, [&] { return !Idle(seen); });
  wake_flag_.Withdraw();
}

void Lander::Loop() noexcept {
  UseShortTimeSlices();
  while (!stop_.load(std::memory_order_seq_cst)) {
    const std::uint32_t seen = work_.load(std::memory_order_seq_cst);
    bool worked = log_ != nullptr && log_->HasRecords() && ApplyLog(kRecordsPerTurn) > 0;
    while (LandNext())
      worked = true;
    worked |= RunCopies();
    TryHousekeeping();
    // Spare pages are touched only when they are used.
    const std::size_t used = pages_touched_ * core_.shape.page_bytes();
    const std::size_t unspared = options_.num_pages * core_.shape.page_bytes();
    const std::size_t ahead = std::max(used, std::min(used + kFaultAhead, unspared));
    if (core_.memory.Prefault(ahead, kFaultStep)) worked = true;
    if (worked) {
      dozing_ = false;
    } else {
      SleepUntilWork(seen);
    }
  }
}

// ---- the log

std::size_t Lander::Drain(std::size_t records) {
  if (applier_ == nullptr) return 0;
  std::size_t applied = 0;
  {
    const MutexLock lock(mutex_);
    applied = applier_->Apply(records);
  }
  if (applied == 0) return 0;
  core_.NotifyProgress();  // a snapshot may have been applied
  // What another thread has applied may be work for the landing thread, and is no record any more.
  if (has_thread() && std::this_thread::get_id() != thread_.get_id()) Wake();
  if (!has_thread() && core_.failure.failed()) Settle();
  return applied;
}

std::size_t Lander::ApplyLog(std::size_t records) {
  for (std::size_t applied = 0;;) {
    if (!core_.failure.failed()) CopyOut();
    const std::size_t most = std::min(records - applied, kRecordsPerPiece);
    const std::size_t piece = Drain(most);
    applied += piece;
    if (piece < most || applied == records) return applied;
  }
}

// ---- snapshots that are released late

void Lander::CopyOut() {
  for (bool more = true; more;) {
    const MutexLock lock(mutex_);
    more = pages_.CopyOut();
  }
}

void Lander::WarnOfPages() {
  std::uint32_t snapshots_only = 0;
  {
    const MutexLock lock(mutex_);
    if (stats_.no_page == 0) return;
    snapshots_only = pages_.pool().snapshots_only();
  }
  logged_pages_ = true;
  Log(LogLevel::kWarning, [&] {
    return absl::StrCat(
        "no page was free, and rows are missing (capacity). Of ", options_.num_pages, " + ",
        *options_.spare_pages, " spare pages, snapshots alone hold ", snapshots_only, ", and ",
        core_.copied_bytes.load(std::memory_order_relaxed), " of ", *options_.copy_out_bytes,
        " bytes are copied out: read and release snapshots sooner, or raise spare_pages or "
        "copy_out_bytes; if snapshots hold few pages, raise num_pages. Logged once");
  });
}

// ---- failures

void Lander::Settle() noexcept {
  RunCopies();  // the snapshots that were applied before see them
  {
    const MutexLock lock(mutex_);
    for (const StepRecord* const record : steps_.in_flight()) {
      if (!record->device) continue;
      core_.unlanded_device_step.store(record->step, std::memory_order_release);
      break;
    }
    if (applier_ != nullptr) applier_->GiveUpSubmitted();
    SnapshotState* state = nullptr;
    while (core_.released.try_dequeue(state))
      core_.FreeTicket(state);
  }
  core_.oldest_in_flight.store(StoreCore::kNoStep, std::memory_order_seq_cst);
  core_.NotifyProgress();
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

void Lander::ServeLog() {
  if (options_.landing == Landing::kThread && log_ != nullptr && log_->HasRecords()) {
    ApplyLog(kRecordsPerTurn);
  }
}

// Without the lock, as Done() may free what it belongs to.
void Lander::ReturnRefused() {
  while (applier_ != nullptr) {
    StepRows* rows = nullptr;
    {
      const MutexLock lock(mutex_);
      rows = applier_->TakeRefused();
    }
    if (rows == nullptr) return;
    core_.CallDone(rows);
  }
}

void Lander::TryHousekeeping() noexcept {
  if (core_.failure.failed()) return;
  try {
    Housekeeping();
  } catch (...) {
    core_.failure.Catch("comparing pages, or making a new base");
  }
}

void Lander::Housekeeping() {
  for (bool more = true; more;) {
    const MutexLock lock(mutex_);
    more = pages_.ReclaimSnapshots(kReclaim);
  }
  CopyOut();
  if (!logged_pages_) WarnOfPages();
  while (const std::optional<Audit::Pair> pair = audit_.TakePair()) {
    RunCopies();  // one of the two may be a copy whose bytes are still queued
    audit_.ComparePair(*pair);
  }
  bool want_base = false;
  {
    const MutexLock lock(mutex_);
    want_base = steps_.NeedsSpareBase();
    pages_touched_ = pages_.pool().pages_touched();
  }
  if (!want_base) return;
  auto base = std::make_shared<StepBase>();
  const MutexLock lock(mutex_);
  steps_.SetSpareBase(std::move(base));
}

// ---- one step

StepRecord* Lander::NextReady(std::uint64_t only_step) {
  {
    const MutexLock lock(mutex_);
    steps_.ListSubmitted(only_step, candidates_);
  }
  // Poll may ask a device, so it is called without the lock. Only this thread takes steps.
  auto ready = std::find_if(candidates_.begin(), candidates_.end(),
                            [](StepRecord* record) { return record->Poll(); });
  std::for_each(candidates_.begin(), ready, [this](StepRecord* record) { NoteOverdue(*record); });
  // The thread is stopped: the store ends.
  if (ready == candidates_.end() && !candidates_.empty() && !has_thread() &&
      std::chrono::steady_clock::now() >= give_up_at_) {
    ready = candidates_.begin();
    (*ready)->GiveUp();
    if (steps_given_up_++ == 0) first_given_up_ = (*ready)->step;
  }
  polling_ = ready == candidates_.end() && !candidates_.empty();
  if (ready == candidates_.end()) return nullptr;
  looks_ = 0;
  const MutexLock lock(mutex_);
  steps_.TakeSubmitted(**ready);
  return *ready;
}

void Lander::NoteOverdue(StepRecord& record) {
  if (record.overdue || options_.overdue_after.count() == 0) return;
  const std::uint64_t waited = ticks_.NanosecondsSince(record.submitted_at);
  if (waited < static_cast<std::uint64_t>(options_.overdue_after.count())) return;
  record.overdue = true;
  {
    const MutexLock lock(mutex_);
    ++stats_.steps_overdue;
  }
  Log(LogLevel::kWarning, [&] {
    return absl::StrCat("the ids of step ", record.step, " have not arrived ",
                        static_cast<double>(waited / 1'000'000) / 1e3, " s after its Submit");
  });
}

bool Lander::LandNext(std::uint64_t only_step) noexcept {
  if (core_.failure.failed()) Settle();
  ReturnRefused();
  if (core_.failure.failed()) return false;
  StepRecord* record = NextReady(only_step);
  // Without a thread of its own, the store waits for the ids here.
  while (record == nullptr && polling_ && !has_thread()) {
    std::this_thread::sleep_for(kPoll);
    record = NextReady(only_step);
  }
  if (record == nullptr) return false;
  StepRows* const rows = record->rows;
  const std::uint64_t step = record->step;
  try {
    LandStep(*record);
  } catch (...) {
    core_.failure.Catch("landing a step");
    const MutexLock lock(mutex_);
    core_.CountEnded();
  }
  core_.CallDone(rows);
  try {
    audit_.LogFindings();
  } catch (...) {
    core_.failure.Catch("logging a finding of the audit");
  }
  if (core_.exceptions.load(std::memory_order_relaxed) > 0 &&
      !std::exchange(logged_exception_, true)) {
    Log(LogLevel::kError, [step] {
      return absl::StrCat("a call of the StepRows of step ", step,
                          " threw an exception: rows that had not landed are not captured");
    });
  }
  if (!has_thread()) TryHousekeeping();
  return true;
}

void Lander::LandStep(StepRecord& record) {
  RunCopies();
  record.tally = {};
  if (record.device && !DeviceSteps::StartLanding(record)) {
    // Which rows its forward wrote is not known.
    const MutexLock lock(mutex_);
    steps_.device().Invalidate(record, Reason::kNotCaptured);
  } else if (record.rows != nullptr && !record.without_claims) {
    LandRows(record);
    if (record.device) RunCopies();  // the audit may read a page that was copied meanwhile
    audit_.CompareIgnored(record);
    if (core_.flight != nullptr) RecordRows(record);
  }
  // The engine may have copied pages with pending rows meanwhile. These rows land in the copies
  // too, after the copied bytes. The check that none is left and the end of the step are under one
  // lock.
  for (std::size_t landed = 0;;) {
    {
      const MutexLock lock(mutex_);
      if (core_.failure.failed()) {
        core_.CountEnded();
        break;
      }
      if (landed == record.copies.size()) {
        if (record.threw) core_.exceptions.fetch_add(1, std::memory_order_relaxed);
        stats_.steps_landed += record.without_claims ? 0 : 1;
        stats_.rows_landed += record.tally.landed;
        stats_.rows_without_claim += record.tally.late;
        for (int i = 0; i < kNumReasons; ++i)
          stats_.rows_missing[i] += record.tally.missing[i];
        if (core_.flight != nullptr && !record.without_claims) core_.flight->OnLanded(record.step);
        audit_.Conclude();
        if (record.submitted_at != 0) {
          stats_.landing_lag.Add(ticks_.NanosecondsSince(record.submitted_at));
        }
        steps_.Retire(record);
        break;
      }
      sides_.assign(record.copies.begin() + static_cast<std::ptrdiff_t>(landed),
                    record.copies.end());
    }
    landed += sides_.size();
    RunCopies();
    LandSides(record, sides_);
  }
  core_.NotifyProgress();
}

void Lander::LandRows(StepRecord& record) {
  const std::size_t rows = record.device ? record.slots.size() : record.num_rows;
  std::array<const Claim*, kLandingChunk> found;
  for (std::size_t first = 0; first < rows; first += kLandingChunk) {
    const std::size_t n = std::min(kLandingChunk, rows - first);
    const std::span<const Claim*> claims(found.data(), n);
    const std::span<std::uint8_t*> destinations(destinations_.data(), n);
    const std::span<Reason> verdicts(verdicts_.data(), n);
    FindClaims(record, first, claims);
    bool wanted = false;
    for (std::size_t i = 0; i < n; ++i) {
      const Claim* const claim = claims[i];
      destinations[i] = claim == nullptr ? nullptr : core_.row(claim->page, claim->row);
      wanted |= claim != nullptr;
    }
    if (!wanted) continue;
    record.Land(static_cast<std::uint32_t>(first), destinations, verdicts);
    for (std::size_t i = 0; i < n; ++i) {
      if (destinations[i] == nullptr) continue;
      Publish(record, claims[i]->page, claims[i]->row, verdicts[i]);
      if (verdicts[i] != Reason::kNone) destinations[i] = nullptr;
    }
    if (options_.count_experts) experts_.Add(core_.shape, record.version, destinations);
    ServeLog();
  }
}

void Lander::FindClaims(StepRecord& record, std::size_t first, std::span<const Claim*> claims) {
  if (record.device) {
    const MutexLock lock(mutex_);
    steps_.device().Resolve(record, first, claims);
    return;
  }
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const Claim& claim = record.claims[first + i];
    claims[i] = nullptr;
    if (claim.page == kNoPage) continue;
    if (!core_.stamp(claim.page, claim.row).Load().pending_for(record.relative)) {
      ++record.tally.late;
      continue;
    }
    claims[i] = &claim;
  }
}

void Lander::LandSides(StepRecord& record, std::span<const SideRow> sides) {
  if (record.rows == nullptr) return;
  for (const SideRow& side : sides) {
    if (!core_.stamp(side.page, side.row).Load().pending_for(record.relative)) {
      ++record.tally.late;
      continue;
    }
    std::uint8_t* const destination = core_.row(side.page, side.row);
    Reason verdict = Reason::kNone;
    const std::uint32_t row = record.device ? record.step_row[side.step_row] : side.step_row;
    record.Land(row, {&destination, 1}, {&verdict, 1});
    Publish(record, side.page, side.row, verdict);
  }
}

// Compare-and-exchange, because the engine's thread may claim, truncate or invalidate the row at
// any time.
void Lander::Publish(StepRecord& record, PageIndex page, std::uint32_t row, Reason verdict) {
  StampCell& cell = core_.stamp(page, row);
  for (;;) {
    const Stamp stamp = cell.Load();
    if (!stamp.pending_for(record.relative)) {
      ++record.tally.late;
      return;
    }
    const Stamp landed = verdict == Reason::kNone ? stamp.Landed() : stamp.Missing(verdict);
    if (!cell.Exchange(stamp, landed)) continue;
    if (verdict == Reason::kNone) {
      ++record.tally.landed;
    } else {
      ++record.tally.missing[static_cast<std::size_t>(verdict)];
    }
    return;
  }
}

// ---- page copies

bool Lander::RunCopies(std::size_t most) {
  {
    const MutexLock lock(mutex_);
    if (!pages_.TakeCopies(running_copies_, most)) return false;
  }
  for (const PageCopy& copy : running_copies_)
    std::memcpy(core_.row(copy.to, 0), core_.row(copy.from, 0), copy.rows * core_.row_bytes);
  {
    const MutexLock lock(mutex_);
    pages_.CopiesDone(running_copies_);
  }
  core_.copies_done.fetch_add(running_copies_.size(), std::memory_order_seq_cst);
  running_copies_.clear();
  core_.NotifyProgress();
  return true;
}

// ---- optional: flight recording

void Lander::RecordRows(StepRecord& record) {
  const std::size_t rows = record.device ? record.slots.size() : record.num_rows;
  flight_ids_.assign(rows * core_.row_bytes, 0);
  flight_verdicts_.assign(rows, Reason::kNone);
  for (std::size_t first = 0; first < rows; first += kLandingChunk) {
    const std::size_t n = std::min(kLandingChunk, rows - first);
    for (std::size_t i = 0; i < n; ++i) {
      destinations_[i] = flight_ids_.data() + (first + i) * core_.row_bytes;
    }
    record.Land(static_cast<std::uint32_t>(first), {destinations_.data(), n},
                std::span<Reason>(flight_verdicts_).subspan(first, n));
  }
  std::optional<std::span<const std::int64_t>> slots;
  if (record.device) slots = record.slots;
  core_.flight->OnRows(record.step, flight_ids_, flight_verdicts_, slots);
}

}  // namespace waymark
