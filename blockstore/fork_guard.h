// ForkGuard: memory that a forked child finds zeroed, so that an object whose threads and locks
// stayed in the parent knows that it is in a child.
#ifndef WAYMARK_BLOCKSTORE_FORK_GUARD_H_
#define WAYMARK_BLOCKSTORE_FORK_GUARD_H_

#include <atomic>
#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"

namespace waymark {

// The kernel zeroes the memory in the child (MADV_WIPEONFORK), whichever way the child is made.
// Where the kernel has no such call (Linux before 4.14), a handler of pthread_atfork does, which
// children of a plain fork() run. Any thread.
class ForkGuard {
 public:
  static constexpr std::size_t kAlignment = 128;  // of memory()

  // Guards nothing: forked() is always false.
  ForkGuard() = default;
  // Maps `bytes` of memory for the owner. ResourceExhausted, naming the number of bytes, if the
  // system refuses. `kernel`: false only in tests, which then run the handler.
  [[nodiscard]] static absl::StatusOr<ForkGuard> Create(std::size_t bytes, bool kernel = true);
  ~ForkGuard();  // unmaps
  ForkGuard(ForkGuard&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  ForkGuard& operator=(ForkGuard&& other) noexcept {
    std::swap(page_, other.page_);
    return *this;
  }

  // Whether this process is a child of the one that created the guard. One load.
  [[nodiscard]] bool forked() const {
    return page_ != nullptr && page_->alive.load(std::memory_order_relaxed) == 0;
  }
  // The owner's memory: zero at first, and zero again in a forked child. Null if the guard guards
  // nothing.
  [[nodiscard]] void* memory() const { return page_ == nullptr ? nullptr : page_ + 1; }

 private:
  struct alignas(kAlignment) Page {
    std::atomic<unsigned char> alive{0};
    bool listed = false;  // the handler zeroes it
    std::size_t bytes = 0;
    Page* next = nullptr;  // of the pages that the handler zeroes
  };
  explicit ForkGuard(Page* page) : page_(page) {}
  struct Handler;

  Page* page_ = nullptr;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FORK_GUARD_H_
