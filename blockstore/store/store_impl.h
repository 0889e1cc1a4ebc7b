// RoutingStore::Impl: joins the classes of the store under one mutex. Internal to blockstore.
//
//   StoreLog       store_log.h       what the engine's thread appends: checks, records, room
//   LogApplier     log_applier.h     the effect of each record
//   EventApplier   event_applier.h   the effect of each event
//   StepWriter     step_writer.h     the rows of a step
//   Pages          pages.h           which page a block has, what holds it, which page a key finds
//   Lander         lander.h          the landing thread
//   ToldSteps      told_steps.h      the steps that wait in the log
//   Audit          audit.h           comparing rows that should be equal
//
// docs/internals/architecture.md explains the rules that their comments name.
#ifndef WAYMARK_BLOCKSTORE_STORE_STORE_IMPL_H_
#define WAYMARK_BLOCKSTORE_STORE_STORE_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "blockstore/mutex.h"
#include "blockstore/store/event_applier.h"
#include "blockstore/store/lander.h"
#include "blockstore/store/log_applier.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/store.h"
#include "blockstore/store/store_core.h"
#include "blockstore/store/store_log.h"

namespace waymark {

struct RoutingStore::Impl final {
  Impl(const StoreOptions& store_options, std::shared_ptr<StoreCore> shared, StoreLog::Pointer log);
  ~Impl();

  // Whether this process is a forked child of the store's.
  [[nodiscard]] bool forked() const { return core_->guard.forked(); }
  // What follows each call of StoreLog that may have appended a record, with its code. `wake`: a
  // landing thread that sleeps is woken. Engine's thread, as all of these.
  void Published(const StepCode& code, bool wake) ABSL_LOCKS_EXCLUDED(mutex_);
  // A ticket for these rows; null: no memory.
  SnapshotState* TakeTicket(std::int64_t first, std::int64_t last);
  // The log has no record of the snapshot: its reader gets no rows (capacity).
  void LoseSnapshot(SnapshotState* state);

  const StoreOptions options_;
  const std::shared_ptr<StoreCore> core_;
  const StoreLog::Pointer log_;
  SnapshotState* tickets_ = nullptr;                      // free ones; engine's thread
  std::atomic<std::uint64_t> snapshots_without_room_{0};  // Stats::snapshots_lost, in the log

  Mutex mutex_;
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  Pages pages_ ABSL_GUARDED_BY(mutex_);
  EventApplier events_ ABSL_GUARDED_BY(mutex_);
  LogApplier applier_ ABSL_GUARDED_BY(mutex_);
  Lander lander_;  // locks mutex_ itself
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_IMPL_H_
