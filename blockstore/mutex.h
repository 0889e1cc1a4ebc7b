// Mutex: a std::mutex with the annotations that clang's -Wthread-safety checks. Abseil's own mutex
// is not built for ThreadSanitizer in distribution packages, so it would give false reports.
#ifndef WAYMARK_BLOCKSTORE_MUTEX_H_
#define WAYMARK_BLOCKSTORE_MUTEX_H_

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace waymark {

// Not recursive. Satisfies Lockable, so it works with std::unique_lock and
// std::condition_variable_any. A member that it guards is marked ABSL_GUARDED_BY(mutex_), a
// function that must be called with it held ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_); clang then
// rejects code that uses them without the lock.
class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  // Returns false, without the lock, if another thread holds it.
  bool try_lock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

// Holds a Mutex until the end of the scope. All code here locks a Mutex this way.
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
