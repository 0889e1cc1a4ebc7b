// Lander: lands submitted steps, the only one to write pages. It runs queued page copies, copies
// rows and publishes their stamps, runs the audit, takes back released snapshots and commits memory
// ahead; rule 6 of docs/architecture.md on the side of the landing thread. Internal to blockstore.
//
// The *landing thread* is the one of Start, or under Landing::kCaller the caller's. It locks the
// store's mutex to take a step and to end it, never while it copies.
#ifndef WAYMARK_BLOCKSTORE_STORE_LANDER_H_
#define WAYMARK_BLOCKSTORE_STORE_LANDER_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "blockstore/log.h"
#include "blockstore/mutex.h"
#include "blockstore/store/audit.h"
#include "blockstore/store/clock.h"
#include "blockstore/store/expert_counter.h"
#include "blockstore/store/log_applier.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/steps.h"
#include "blockstore/store/store_log.h"
#include "blockstore/store/wake_flag.h"

namespace waymark {

inline constexpr std::size_t kLandingChunk = 64;  // rows per call of StepRows::Land

class Lander {
 public:
  // The references must outlive the object. `mutex` guards pages, steps, stats and `applier`, which
  // applies `log`. Both may be null, in tests: there is then no log.
  Lander(const StoreOptions& options, StoreCore& core, Mutex& mutex, Pages& pages, Steps& steps,
         Stats& stats, StoreLog* log = nullptr, LogApplier* applier = nullptr);
  ~Lander() { Stop(); }

  // ---- the thread. Engine's thread.
  // ResourceExhausted if the thread cannot be started.
  [[nodiscard]] absl::Status Start();
  // Stops the thread, if there is one. Steps that it has not landed stay submitted.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);
  [[nodiscard]] bool has_thread() const { return thread_.joinable(); }
  // The store ends: once `timeout` has passed from now on, and the thread is stopped, LandNext
  // lands steps whose ids have not arrived as not captured. REQUIRES: called once.
  void GiveUpAfter(std::chrono::nanoseconds timeout);
  // Logs which steps were, if any.
  void LogGivenUp() const noexcept;
  // Wakes the thread; a system call only if it sleeps. Any thread.
  void Wake();
  // The same, for the engine's thread after it has published records.
  void WakeForRecords();

  // Applies the records of the log that were published before the call, at most `records`. Returns
  // their number. Any thread.
  std::size_t Drain(std::size_t records = LogApplier::kAll) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- work. Landing thread.
  // Drain, a few records at a time, and copies pages out before the next ones may need them.
  std::size_t ApplyLog(std::size_t records = LogApplier::kAll) ABSL_LOCKS_EXCLUDED(mutex_);
  // Lands the next submitted step, or `only_step`. False if there is none, or the store has failed.
  // An exception of the step's StepRows makes its rows missing (not captured); any other one makes
  // the store fail.
  bool LandNext(std::uint64_t only_step = 0) noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Does the oldest queued page copies, at most `most`; false if there are none.
  bool RunCopies(std::size_t most = Pages::kMaxCopies) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- what it found. Any thread.
  [[nodiscard]] Audit& audit() { return audit_; }
  [[nodiscard]] ExpertCounter& experts() { return experts_; }

 private:
  void Loop() noexcept;
  // The store has failed: makes sure that nothing waits for what it will not do any more. May be
  // called again.
  void Settle() noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs the line that `text` returns. Ignores exceptions.
  template <class Text>
  void Log(LogLevel level, const Text& text) const noexcept;
  void SleepUntilWork(std::uint32_t seen);
  [[nodiscard]] bool Idle(std::uint32_t seen) const;
  // Copies pages out while they are short (Pages::CopyOut).
  void CopyOut() ABSL_LOCKS_EXCLUDED(mutex_);
  // Logs, once, that a row is missing because no page was free.
  void WarnOfPages() ABSL_LOCKS_EXCLUDED(mutex_);
  // Applies what was published meanwhile, between two pieces of a landing.
  void ServeLog() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next submitted step, or `only_step`, whose ids can be read; null if there is none.
  StepRecord* NextReady(std::uint64_t only_step) ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts and logs the step, whose ids have not arrived, if it is overdue (StoreOptions).
  void NoteOverdue(StepRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls Done() of rows whose step is not in flight.
  void ReturnRefused() ABSL_LOCKS_EXCLUDED(mutex_);
  // Released snapshots, pairs of pages to compare, and the spare base.
  void Housekeeping() ABSL_LOCKS_EXCLUDED(mutex_);
  void TryHousekeeping() noexcept ABSL_LOCKS_EXCLUDED(mutex_);
  // Lands one step, but for Done(): page copies, its rows, the audit, its end.
  void LandStep(StepRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  void LandRows(StepRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  void LandSides(StepRecord& record, std::span<const SideRow> sides);
  // Finds the claims of rows [first, first + claims.size()) of the step; null: it is not stored.
  void FindClaims(StepRecord& record, std::size_t first, std::span<const Claim*> claims)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Publishes the row with this verdict if it is still pending for the step.
  void Publish(StepRecord& record, PageIndex page, std::uint32_t row, Reason verdict);
  // Passes all rows of a step to the flight sink.
  void RecordRows(StepRecord& record);

  const StoreOptions& options_;
  const TickRate ticks_;
  StoreCore& core_;
  Mutex& mutex_;
  Pages& pages_ ABSL_GUARDED_BY(mutex_);
  Steps& steps_ ABSL_GUARDED_BY(mutex_);
  Stats& stats_ ABSL_GUARDED_BY(mutex_);
  StoreLog* const log_;
  LogApplier* const applier_ ABSL_PT_GUARDED_BY(mutex_);
  Audit audit_;
  ExpertCounter experts_;

  // Landing thread.
  std::vector<std::uint8_t*> destinations_;  // [kLandingChunk]
  std::vector<Reason> verdicts_;             // [kLandingChunk]
  std::vector<PageCopy> running_copies_;
  std::vector<SideRow> sides_;  // scratch of LandStep
  std::vector<std::uint8_t> flight_ids_;
  std::vector<Reason> flight_verdicts_;
  std::size_t pages_touched_ = 0;        // as of the last Housekeeping
  std::vector<StepRecord*> candidates_;  // scratch of NextReady
  bool dozing_ = false;                  // the last wait timed out
  int looks_ = 0;         // at steps whose ids had not arrived, since a step was ready
  bool polling_ = false;  // the ids of a submitted step are on their way
  std::chrono::steady_clock::time_point give_up_at_ = std::chrono::steady_clock::time_point::max();
  std::uint64_t steps_given_up_ = 0;
  std::uint64_t first_given_up_ = 0;  // its number
  bool logged_exception_ = false;
  bool logged_failure_ = false;
  bool logged_pages_ = false;

  std::thread thread_;
  std::atomic<bool> stop_{false};
  WakeFlag wake_flag_;
  std::atomic<std::uint32_t> work_{0};  // incremented by every Wake
  std::mutex wake_mutex_;
  std::condition_variable wake_cv_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_LANDER_H_
