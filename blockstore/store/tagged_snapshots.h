// TaggedSnapshots: snapshots that another process requested in a message, by tag, until a thread of
// this process takes them. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_TAGGED_SNAPSHOTS_H_
#define WAYMARK_BLOCKSTORE_STORE_TAGGED_SNAPSHOTS_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <optional>
#include <unordered_map>
#include <utility>

#include "blockstore/mutex.h"
#include "blockstore/store/snapshot.h"

namespace waymark {

// At most a fixed number, because each pins pages: the oldest is given up for a further one. Any
// thread.
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

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_TAGGED_SNAPSHOTS_H_
