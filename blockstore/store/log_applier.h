// LogApplier: the effect of each record of the log on the pages and the steps, in the order of the
// log; rule 1 of docs/architecture.md. Internal to blockstore.
//
// Guarded by the store's mutex: the thread that holds it applies the log. That is the landing
// thread as a rule, and a query's thread in its own call.
#ifndef WAYMARK_BLOCKSTORE_STORE_LOG_APPLIER_H_
#define WAYMARK_BLOCKSTORE_STORE_LOG_APPLIER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "blockstore/store/clock.h"
#include "blockstore/store/derived_events.h"
#include "blockstore/store/event_applier.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/steps.h"
#include "blockstore/store/store_core.h"
#include "blockstore/store/store_log.h"

namespace waymark {

class LogApplier {
 public:
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  // `options`: as RoutingStore::Create completed them. The references must outlive the object.
  LogApplier(const StoreOptions& options, StoreCore& core, StoreLog& log, Pages& pages,
             Steps& steps, EventApplier& events, Stats& stats);

  // Applies the oldest records that were published before the call: at most `records`, and no more
  // once `bytes` of the log have room again. Returns their number. An exception makes the store
  // fail (StoreCore::failure); the records of a store that has failed are discarded.
  std::size_t Apply(std::size_t records = kAll, std::size_t bytes = kAll) noexcept;
  // Drops a step in flight that the engine has not ended, when the store ends.
  void Drop(StepRecord& record) noexcept;
  // The store has failed: no submitted step will land.
  void GiveUpSubmitted() noexcept;

  // Records were lost: see PoisonRecord.
  void Poison(std::span<const std::uint64_t> open, std::uint64_t last, std::uint64_t version);

  // The last step begun, and the open schedule (0: none), as far as the log has been applied.
  [[nodiscard]] std::uint64_t last_step() const { return last_; }
  [[nodiscard]] std::uint64_t schedule() const { return schedule_; }
  // To those of a checkpoint.
  void SetSteps(std::uint64_t last, std::uint64_t schedule) {
    last_ = last;
    schedule_ = schedule;
  }
  // Takes rows that were submitted and will not land: their Done() is to be called, without the
  // mutex. Null if there are none.
  [[nodiscard]] StepRows* TakeRefused();

 private:
  // False if the store has failed, before or by this record.
  bool TryApply(const RecordHeader& record) noexcept;
  void ApplyOne(const RecordHeader& record);
  void ApplyEvents(const EventsRecord& record);
  // The events in piece_.
  void ApplyPiece();
  // Of a step that is about to begin.
  void ApplyDerivedEvents(const StepBatch& batch);
  // What remains to be done for a record that is not applied, so that nothing waits for it.
  void Discard(const RecordHeader& record) noexcept;
  void Refuse(StepRows* rows);
  void ApplySchedule(std::uint64_t step, std::uint64_t version);
  void ApplyBegin(const BeginRecord& begin);
  void ApplySubmit(const SubmitRecord& submit);
  void ApplyEnd(std::uint64_t step, StepEnd how);
  void End(StepRecord& record, StepEnd how);
  void ApplySnapshot(const SnapshotRecord& snapshot);

  StoreCore& core_;
  StoreLog& log_;
  Pages& pages_;
  Steps& steps_;
  EventApplier& events_;
  Stats& stats_;
  const bool caller_lands_;
  DerivedEvents derived_;
  const TickRate ticks_;
  std::uint64_t last_ = 0;
  std::uint64_t schedule_ = 0;
  // Counted as in flight by the step book until they are taken, so its capacity,
  // max_steps_in_flight, is enough.
  std::vector<StepRows*> refused_;
  std::vector<Event> piece_;         // scratch of ApplyPiece
  std::vector<std::int64_t> slots_;  // scratch of ApplyBegin
  std::vector<BlockId> blocks_;      // scratch of ApplySnapshot
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_LOG_APPLIER_H_
