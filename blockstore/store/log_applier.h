// LogApplier: the effect of each record of the log, in its order; rules 1 to 3 of
// docs/internals/architecture.md. Internal to blockstore.
//
// Guarded by the store's mutex, and called by the landing thread alone, or where there is none by
// the engine's.
#ifndef WAYMARK_BLOCKSTORE_STORE_LOG_APPLIER_H_
#define WAYMARK_BLOCKSTORE_STORE_LOG_APPLIER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "blockstore/store/clock.h"
#include "blockstore/store/event_applier.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/step_writer.h"
#include "blockstore/store/store_core.h"
#include "blockstore/store/store_log.h"

namespace waymark {

class LogApplier {
 public:
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  // `options`: as RoutingStore::Create completed them. The references must outlive the object.
  LogApplier(const StoreOptions& options, StoreCore& core, StoreLog& log, Pages& pages,
             EventApplier& events, Stats& stats);

  // Applies the oldest records that were published before the call, at most `records`, up to the
  // next step, which is front() then. Returns their number. An exception makes the store fail
  // (StoreCore::failure); the records of a store that has failed are discarded.
  std::size_t Apply(std::size_t records = kAll) noexcept;
  // The step at the front of the log, where Apply has stopped; null if there is none.
  [[nodiscard]] StepRecord* front() { return front_; }

  // The turn of front() has come. It has rows to write unless the verdict is kNotRun. What it
  // returns is valid until End.
  [[nodiscard]] StepToWrite Begin(Verdict verdict);
  // Its rows are written.
  void End(const StepToWrite& step, Verdict verdict);
  // Removes front() from the log.
  void PopFront() noexcept;

  // Records were lost: see PoisonRecord.
  void Poison(std::uint64_t last, std::uint64_t version, Cause cause);

  // The last step, and the open schedule (0: none), as far as the log has been applied.
  [[nodiscard]] std::uint64_t last_step() const { return last_; }
  [[nodiscard]] std::uint64_t schedule() const { return schedule_; }
  // To a checkpoint's.
  void SetSteps(std::uint64_t last, std::uint64_t schedule) {
    last_ = last;
    schedule_ = schedule;
  }

 private:
  // False if the store has failed, before or by this record.
  bool TryApply(const RecordHeader& record) noexcept;
  void ApplyOne(const RecordHeader& record);
  void ApplyEvents(const EventsRecord& record);
  // What remains to be done for a record that is not applied, so that nothing waits for it.
  void Discard(const RecordHeader& record) noexcept;
  void OpenSchedule(std::uint64_t step, std::uint64_t version);
  void RecordSchedule(std::uint64_t step, std::uint64_t version);
  void ApplySnapshot(const SnapshotRecord& snapshot);

  StoreCore& core_;
  StoreLog& log_;
  Pages& pages_;
  EventApplier& events_;
  Stats& stats_;
  const bool caller_lands_;
  const TickRate ticks_;
  StepRecord* front_ = nullptr;
  std::uint64_t last_ = 0;
  std::uint64_t schedule_ = 0;
  std::vector<Event> piece_;         // scratch of ApplyEvents
  std::vector<std::int64_t> slots_;  // of the step whose turn it is
  std::vector<BlockId> blocks_;      // scratch of ApplySnapshot
  std::vector<BlockKey> keys_;       // the same
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_LOG_APPLIER_H_
