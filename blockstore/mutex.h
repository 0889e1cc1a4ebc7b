// A std::mutex that clang's -Wthread-safety understands. (Abseil's own is not instrumented for TSan
// in distribution packages, so reports about it would be false.)
#ifndef WAYMARK_BLOCKSTORE_MUTEX_H_
#define WAYMARK_BLOCKSTORE_MUTEX_H_

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace waymark {

// Not recursive. Satisfies Lockable, so std::unique_lock and std::condition_variable_any take it
// too. Members that it guards are marked ABSL_GUARDED_BY(mutex_), functions that need it held
// ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_); clang then refuses what touches them without.
class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  // False, and not held, when somebody else holds it.
  bool try_lock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

// Holds a Mutex for a scope. The one way that this project takes it.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_MUTEX_H_
