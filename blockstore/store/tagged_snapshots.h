// TaggedSnapshots: snapshots that another process requested in a message, by tag, until a thread of
// this process takes them. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_TAGGED_SNAPSHOTS_H_
#define WAYMARK_BLOCKSTORE_STORE_TAGGED_SNAPSHOTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
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
    return snapshots_.contains(tag);
  }
  // REQUIRES: !Has(tag).
  void Add(std::uint64_t tag, Snapshot snapshot) ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    // A tag that was taken stays in the order until it is the oldest, or the order is too long.
    while (snapshots_.size() >= most_) {
      given_up_ += Remove(order_.front()) ? 1 : 0;
      order_.pop_front();
    }
    if (order_.size() >= 2 * most_) {
      std::erase_if(order_, [&](const Request& old) { return Find(old) == snapshots_.end(); });
    }
    order_.push_back({tag, ++requests_});
    snapshots_.emplace(tag, Tagged{requests_, std::move(snapshot)});
  }
  // Removes and returns the snapshot; nullopt if there is none.
  [[nodiscard]] std::optional<Snapshot> Take(std::uint64_t tag) ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    const auto found = snapshots_.find(tag);
    if (found == snapshots_.end()) return std::nullopt;
    Snapshot snapshot = std::move(found->second.snapshot);
    snapshots_.erase(found);
    return snapshot;
  }
  // Releases all of them.
  void GiveUpAll() ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    given_up_ += snapshots_.size();
    snapshots_.clear();
    order_.clear();
  }
  // Snapshots that were released because there were too many, or by GiveUpAll.
  [[nodiscard]] std::uint64_t given_up() const ABSL_LOCKS_EXCLUDED(mutex_) {
    const MutexLock lock(mutex_);
    return given_up_;
  }

 private:
  // A tag can be used again once its snapshot was taken: the number distinguishes its uses.
  struct Request {
    std::uint64_t tag;
    std::uint64_t number;
  };
  struct Tagged {
    std::uint64_t number;
    Snapshot snapshot;
  };
  using Map = std::unordered_map<std::uint64_t, Tagged>;

  Map::iterator Find(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = snapshots_.find(request.tag);
    return found != snapshots_.end() && found->second.number == request.number ? found
                                                                               : snapshots_.end();
  }
  bool Remove(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = Find(request);
    if (found == snapshots_.end()) return false;
    snapshots_.erase(found);
    return true;
  }

  const std::size_t most_;
  mutable Mutex mutex_;
  Map snapshots_ ABSL_GUARDED_BY(mutex_);
  std::deque<Request> order_ ABSL_GUARDED_BY(mutex_);  // of Add
  std::uint64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t given_up_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_TAGGED_SNAPSHOTS_H_
