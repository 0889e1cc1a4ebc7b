// Lander: the landing thread. It applies the log: records through LogApplier, and each step when
// its ids are there; rules 2, 3 and 11 of docs/internals/architecture.md. It takes back
// released snapshots and commits memory ahead. Internal to blockstore.
//
// The *landing thread* is the one of Start, or where there is none the engine's. It locks the
// store's mutex to change the state, never while it copies ids or calls foreign code.
#ifndef WAYMARK_BLOCKSTORE_STORE_LANDER_H_
#define WAYMARK_BLOCKSTORE_STORE_LANDER_H_

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "blockstore/log.h"
#include "blockstore/mutex.h"
#include "blockstore/store/audit.h"
#include "blockstore/store/clock.h"
#include "blockstore/store/log_applier.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/step_writer.h"
#include "blockstore/store/store_log.h"
#include "blockstore/store/told_steps.h"
#include "blockstore/store/wake_flag.h"
#include "blockstore/thread.h"

namespace waymark {

class Lander {
 public:
  // The references must outlive the object. `mutex` guards pages, stats and `applier`, which
  // applies `log`.
  Lander(const StoreOptions& options, StoreCore& core, Mutex& mutex, Pages& pages, Stats& stats,
         StoreLog& log, LogApplier& applier);

  // ---- the thread. Engine's thread.
  // `owner`: of this object, and of all that is referred to; the thread has a share. Errors of
  // LibraryThread::Start.
  [[nodiscard]] absl::Status Start(std::shared_ptr<void> owner);
  // Ends the thread, if there is one (LibraryThread::End). Records that it has not applied stay in
  // the log.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_) { (void)thread_.End(); }
  [[nodiscard]] bool has_thread() const { return thread_.started(); }
  // Wakes the thread; a system call only if it sleeps. Any thread.
  void Wake();
  // The same, for the engine's thread after it has published records or a verdict.
  void WakeForRecords();

  // ---- work. Landing thread.
  // Applies the log, at most `records`, until a step waits. Returns the number of records.
  std::size_t ApplyLog(std::size_t records = LogApplier::kAll) ABSL_LOCKS_EXCLUDED(mutex_);
  // Without a thread: applies the step at the front of the log, which was submitted, and if
  // `only_step` is not 0 only that one; waits for its ids, at most StoreOptions::ids_timeout. False
  // if there is none, or the store has failed.
  bool LandNext(std::uint64_t only_step = 0) noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Without a thread: ApplyLog with all submitted steps, until `deadline`. Returns whether the log
  // is empty.
  bool ApplyAll(std::chrono::steady_clock::time_point deadline) noexcept
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The store ends; without a thread. Applies the whole log: open steps are lost (capacity), and
  // ids are waited for until StoreOptions::teardown_timeout has passed from now on, then not
  // captured. Logs which were. May be called again for what the engine appended since.
  void Finish() noexcept ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- what it found. Any thread.
  [[nodiscard]] Audit& audit() { return audit_; }
  [[nodiscard]] const ToldSteps& told() const { return told_; }

 private:
  // Why the step at the front of the log waits.
  enum class Waits : std::uint8_t { kForNothing, kForVerdict, kForIds, kForCaller };

  void Loop() noexcept;
  // The store has failed: takes back snapshots, and logs why. May be called again.
  void Settle() noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs the line that `text` returns. Ignores exceptions.
  template <class Text>
  void Log(LogLevel level, const Text& text) const noexcept;
  void SleepUntilWork(std::uint32_t seen, std::uint64_t verdicts);
  [[nodiscard]] bool Idle(std::uint32_t seen, std::uint64_t verdicts) const;
  // Logs, once each, what costs rows and somebody can mend.
  void WarnOfLosses() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the audit. False if there were none.
  bool ComparePairs() noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes back released snapshots.
  void Housekeeping() noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Applies the step at the front of the log if it need not wait; sets waits_.
  bool TryApplyFront(StepRecord& front) noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the ids are there; or will not be waited for any more, which sets *lost.
  bool IdsAreThere(const StepRecord& front, StepIds& ids, bool* lost);
  // Begin, rows, end.
  void ApplyStep(Verdict verdict, StepIds& ids) ABSL_LOCKS_EXCLUDED(mutex_);
  void FetchAhead() noexcept;
  // Counts and logs the step, whose ids have not arrived since `what`, if it is overdue
  // (StoreOptions). Returns for how long, in nanoseconds.
  std::uint64_t NoteOverdue(const StepRecord& record, std::uint64_t since, const char* what)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const StoreOptions& options_;
  const TickRate ticks_;
  StoreCore& core_;
  Mutex& mutex_;
  Pages& pages_ ABSL_GUARDED_BY(mutex_);
  Stats& stats_ ABSL_GUARDED_BY(mutex_);
  StoreLog& log_;
  LogApplier& applier_ ABSL_GUARDED_BY(mutex_);
  Audit audit_;
  StepWriter writer_;
  ToldSteps told_;

  // Landing thread.
  Waits waits_ = Waits::kForNothing;
  bool caller_lands_;              // a submitted step waits for LandNext
  bool finishing_ = false;         // the store ends
  std::size_t pages_touched_ = 0;  // as of the last Housekeeping
  bool dozing_ = false;            // the last wait timed out
  int looks_ = 0;                  // at steps whose ids had not arrived, since a step was applied
  std::chrono::steady_clock::time_point give_up_at_ = std::chrono::steady_clock::time_point::max();
  std::uint64_t steps_given_up_ = 0;
  std::uint64_t first_given_up_ = 0;  // its number
  std::uint64_t overdue_ = 0;         // the last step that was
  bool logged_failure_ = false;
  enum Loss : std::size_t {
    kNoPage,
    kFull,
    kNoBuffer,
    kLostRecords,
    kReleased,
    kTakenLate,
    kThrew,
    kLosses
  };
  std::array<bool, kLosses> logged_losses_{};

  LibraryThread thread_;
  std::atomic<bool> stop_{false};
  WakeFlag wake_flag_;
  std::atomic<std::uint32_t> work_{0};  // incremented by every Wake
  std::mutex wake_mutex_;
  std::condition_variable wake_cv_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_LANDER_H_
