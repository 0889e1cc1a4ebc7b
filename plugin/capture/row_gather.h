// RowGather: sequence parallelism. Each rank captures the rows of its part of a forward; the ranks
// exchange the packed rows of each step, and the store of every rank gets the rows of all.
// Included by this folder only.
//
//   engine's thread    Begin 7         Submit 7        Begin 8         Submit 8
//   gather thread                          pack 7, all-gather 7            pack 8, ...
//   landing thread                                             land 7                  land 8
//
// For every step that is begun there is one all-gather, in the order of the begins, whatever
// becomes of the step on this rank: a step that is dropped or cancelled sends its reason instead of
// rows. So all ranks call the collective equally often, in the same order, and with the same number
// of bytes, which depends on the rows of the step alone. Neither the engine's thread nor the
// landing thread waits for another rank.
//
// A part begins with a header, which has the step, and digests of itself and of the rows. A part
// that is damaged, or belongs to another step (after an error of the collective), has no rows.
#ifndef WAYMARK_PLUGIN_CAPTURE_ROW_GATHER_H_
#define WAYMARK_PLUGIN_CAPTURE_ROW_GATHER_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/ids.h"
#include "blockstore/log.h"
#include "blockstore/row_info.h"
#include "blockstore/shape.h"
#include "blockstore/store/step_rows.h"
#include "blockstore/thread.h"
#include "plugin/capture/collective.h"

namespace waymark {

struct RowGatherOptions {
  RoutingShape shape;
  Collective collective;       // of at least two ranks
  std::int32_t max_rows = 0;   // the most rows of one rank in a step
  std::int32_t num_steps = 0;  // steps between their begin and their landing
  LogCallback log = {};        // called on the gather thread
  std::chrono::nanoseconds teardown_timeout = std::chrono::seconds(5);  // of Close
};

// Counters since the gather was made.
struct RowGatherStats {
  std::uint64_t steps = 0;          // all-gathers that succeeded
  std::uint64_t failed = 0;         // steps whose all-gather failed, or was not called any more
  std::uint64_t parts_missing = 0;  // parts of other ranks without rows, in those that succeeded
};

// The calls from healthy() to Close() come from the engine's thread; those up to End() neither
// allocate, block nor throw. The thread and the steps that have not landed keep the object alive.
class RowGather : public std::enable_shared_from_this<RowGather> {
 public:
  // The StepRows of a step for the store: the rows of all ranks.
  class Gathered;

  // Steps that can wait for their all-gather; one more, and the gather fails for good.
  static constexpr std::uint64_t kMostWaiting = 4096;

  // Starts the thread ("wm-gather"). InvalidArgument of CheckCollective; ResourceExhausted.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<RowGather>> Create(
      const RowGatherOptions& options);
  ~RowGather();
  RowGather(const RowGather&) = delete;
  RowGather& operator=(const RowGather&) = delete;

  [[nodiscard]] std::int32_t ranks() const { return options_.collective.ranks; }

  // Whether one more step can be begun. False once kMostWaiting steps wait: the ranks would not
  // call the collective equally often any more, so it is never called again (status()).
  [[nodiscard]] bool Ready();
  // Memory for the rows of a step, from its begin until they have been read; null: none is free,
  // and the step must be dropped. GiveBack if the step does not begin.
  [[nodiscard]] Gathered* Take();
  void GiveBack(Gathered* memory);
  // A step has begun, of `rows` rows on each rank. `memory`: of Take; null if it was dropped as it
  // began, which ends it. REQUIRES: Ready(), 0 <= rows <= max_rows.
  void Begin(StepId step, std::uint64_t version, std::int32_t rows, Gathered* memory);
  // The rows on each rank of `step`, which has begun and not ended; -1 if it has not.
  [[nodiscard]] std::int32_t OpenRows(StepId step) const;
  // Ends `step` with the rows of this rank; the caller passes the result to RoutingStore::Submit.
  // local->Done() is called on the gather thread. REQUIRES: it has begun and not ended.
  [[nodiscard]] StepRows* Submit(StepId step, StepRows* local);
  // Ends `step` without rows, for `why`: what the other ranks are told. Nothing if it is not open.
  void End(StepId step, Reason why);
  // Ends the thread when all steps have been exchanged, or teardown_timeout has passed; the rows of
  // steps that are left are missing (not captured). If the thread is in the collective then, it is
  // left there: it does nothing more when it returns. The gather thread itself (in the collective,
  // or in a call of StepRows or of the log) does not wait. `forked`: in a child of the process,
  // which has no such thread. Called once, before the last reference goes.
  void Close(bool forked);

  // OK, or why the collective is not called any more. Any thread.
  [[nodiscard]] absl::Status status() const;
  // Any thread.
  [[nodiscard]] RowGatherStats GetStats() const;

 private:
  struct Turn;  // a step that waits for its all-gather
  struct Header;

  explicit RowGather(const RowGatherOptions& options);

  // ---- the engine's thread
  [[nodiscard]] Turn* FindOpen(StepId step) const;
  void EndTurn(Turn& turn);
  void Wake();

  // ---- the gather thread
  void Run();
  // The next step that has ended and whose rows are there; null: there is none any more.
  [[nodiscard]] Turn* WaitForTurn();
  // False: the turn is not this thread's any more.
  [[nodiscard]] bool Exchange(Turn& turn);
  // Writes the part of this rank to send_. Returns its bytes.
  std::size_t Pack(Turn& turn);
  [[nodiscard]] Reason PackRows(Turn& turn, std::uint8_t* verdicts, std::uint8_t* rows);
  // Why the part of `rank` at `at` has no rows; kNone: it has. `problem`: what is wrong with it.
  [[nodiscard]] Reason CheckPart(const Turn& turn, std::int32_t rank, const std::uint8_t* at,
                                 std::string& problem) const;
  // Ends a turn whose rows are missing everywhere (not captured).
  void Fail(Turn& turn);
  [[nodiscard]] std::size_t PartBytes(std::int32_t rows) const;

  // collective.owner is released by Close, or by the thread if it was given up.
  RowGatherOptions options_;
  const std::size_t row_bytes_;
  std::vector<std::unique_ptr<Gathered>> steps_;
  std::size_t next_ = 0;                // of steps_, where Take looks first
  std::unique_ptr<Turn[]> turns_;       // [kMostWaiting], a ring
  std::vector<Turn*> open_;             // begun and not ended; capacity is reserved
  std::atomic<std::uint64_t> tail_{0};  // turns begun; written by the engine's thread
  std::atomic<std::uint64_t> head_{0};  // turns exchanged; by the gather thread

  std::atomic<std::uint32_t> wakes_{0};  // counts what the thread may wait for
  std::atomic<bool> failed_{false};      // too many turns
  std::atomic<bool> closing_{false};     // no step begins any more
  std::atomic<bool> stop_{false};        // nor is the collective called any more
  std::mutex mutex_;
  std::condition_variable changed_;
  bool calling_ = false;    // guarded by mutex_: the thread is in the collective,
  bool abandoned_ = false;  // and must do nothing when it returns
  bool finished_ = false;   // guarded by mutex_
  LibraryThread thread_;

  // Of the gather thread.
  std::vector<std::uint8_t> send_;
  std::unique_ptr<std::uint8_t[]> unwanted_;  // receives parts that this rank does not read
  std::vector<std::uint8_t*> destinations_;
  std::vector<std::uint8_t> written_;
  std::chrono::steady_clock::time_point busy_;
  std::uint64_t problems_ = 0;
  std::uint64_t next_problem_ = 1;  // is logged: the 1st, the 10th, the 100th, ...
  bool logged_failure_ = false;
  std::atomic<std::uint64_t> exchanged_{0}, failures_{0}, parts_missing_{0};
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_ROW_GATHER_H_
