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
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blockstore/mutex.h"
#include "blockstore/store/event_applier.h"
#include "blockstore/store/lander.h"
#include "blockstore/store/log_applier.h"
#include "blockstore/store/message_order.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/schedule_message.h"
#include "blockstore/store/store.h"
#include "blockstore/store/store_core.h"
#include "blockstore/store/store_log.h"

namespace waymark {

// The snapshots that another process requested in a message, by tag, until a thread of this process
// takes them. At most a fixed number, because each pins pages: the oldest is given up for a further
// one. Any thread.
class TaggedSnapshots {
 public:
  // `most`: how many snapshots are kept, >= 1.
  explicit TaggedSnapshots(std::size_t most) : most_(most) {}

  // Whether there is a snapshot with this tag.
  [[nodiscard]] bool Has(std::uint64_t tag) const ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    return by_tag_.contains(tag);
  }
  // REQUIRES: !Has(tag).
  void Add(std::uint64_t tag, Snapshot snapshot) ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    for (; snapshots_.size() >= most_; ++given_up_) {
      by_tag_.erase(snapshots_.front().first);
      snapshots_.pop_front();
    }
    snapshots_.emplace_back(tag, Snapshot());
    try {
      by_tag_.emplace(tag, std::prev(snapshots_.end()));
    } catch (...) {
      snapshots_.pop_back();
      throw;
    }
    snapshots_.back().second = std::move(snapshot);
  }
  // Removes and returns the snapshot; nullopt if there is none.
  [[nodiscard]] std::optional<Snapshot> Take(std::uint64_t tag) ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    const auto found = by_tag_.find(tag);
    if (found == by_tag_.end()) return std::nullopt;
    Snapshot snapshot = std::move(found->second->second);
    snapshots_.erase(found->second);
    by_tag_.erase(found);
    return snapshot;
  }
  // Releases all of them.
  void GiveUpAll() ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    given_up_ += snapshots_.size();
    by_tag_.clear();
    snapshots_.clear();
  }
  // Snapshots that were released because there were too many, or by GiveUpAll.
  [[nodiscard]] std::uint64_t given_up() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    return given_up_;
  }

 private:
  using List = std::list<std::pair<std::uint64_t, Snapshot>>;  // with their tags, the oldest first

  const std::size_t most_;
  mutable Mutex mutex_;
  List snapshots_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, List::iterator> by_tag_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t given_up_ ABSL_GUARDED_BY(mutex_) = 0;
};

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
  // RoutingStore::ReportMessage, in its turn.
  absl::Status AppendMessage(const StoreLog::Turn& turn, std::span<const std::uint8_t> message,
                             std::vector<std::uint64_t>& tags);
  // Why these records, which may be appended as such, contradict the store.
  absl::Status CheckMessage(std::span<std::uint8_t> records);
  // Gives the snapshots of the records their tickets, under their tags. `tags`: theirs.
  absl::Status TakeTickets(std::span<std::uint8_t> records, std::vector<std::uint64_t>& tags);

  const StoreOptions options_;
  const std::shared_ptr<StoreCore> core_;
  const StoreLog::Pointer log_;
  SnapshotState* tickets_ = nullptr;  // free ones; engine's thread
  MessageOrder message_order_;        // engine's thread
  ScheduleScratch scratch_;           // of messages; engine's thread
  TaggedSnapshots tagged_;
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
