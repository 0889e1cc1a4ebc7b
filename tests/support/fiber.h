// Fiber: a flow of control with a stack of its own, which runs until it switches to another one.
#ifndef WAYMARK_TESTS_SUPPORT_FIBER_H_
#define WAYMARK_TESTS_SUPPORT_FIBER_H_

#include <ucontext.h>

#include <cstddef>
#include <memory>

#if defined(WAYMARK_SANITIZER_address)
#include <sanitizer/common_interface_defs.h>
#elif defined(WAYMARK_SANITIZER_thread)
#include <sanitizer/tsan_interface.h>
#endif

namespace waymark {

// One flow of control with a stack of its own, or the thread's (no stack). Not moved once it runs.
class Fiber {
 public:
  Fiber() = default;  // the thread that calls Switch first
  // Runs `entry`, which never returns, when it is first switched to.
  Fiber(std::size_t stack_bytes, void (*entry)())
      : stack_(new std::byte[stack_bytes]), stack_bytes_(stack_bytes) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_.get();
    context_.uc_stack.ss_size = stack_bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#if defined(WAYMARK_SANITIZER_thread)
    tsan_ = __tsan_create_fiber(0);
#endif
  }
  ~Fiber() {
#if defined(WAYMARK_SANITIZER_thread)
    if (stack_ != nullptr) __tsan_destroy_fiber(tsan_);
#endif
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Stops `from`, which is running, and lets `to` go on; returns when something switches back.
  static void Switch(Fiber& from, Fiber& to) {
#if defined(WAYMARK_SANITIZER_address)
    __sanitizer_start_switch_fiber(&from.fake_stack_, to.Bottom(), to.stack_bytes_);
    Previous() = &from;
    swapcontext(&from.context_, &to.context_);
    from.Arrived();
#else
#if defined(WAYMARK_SANITIZER_thread)
    if (from.stack_ == nullptr) from.tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.tsan_, 0);
#endif
    swapcontext(&from.context_, &to.context_);
#endif
  }
  // The first thing that a fiber's entry calls.
  void Arrived() {
#if defined(WAYMARK_SANITIZER_address)
    Fiber& previous = *Previous();
    const void* bottom = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &bytes);
    if (previous.stack_ == nullptr) {  // the thread's own stack is known only once it was left
      previous.thread_bottom_ = bottom;
      previous.stack_bytes_ = bytes;
    }
#endif
  }

 private:
  [[nodiscard]] const void* Bottom() const {
    return stack_ != nullptr ? stack_.get() : thread_bottom_;
  }
  static Fiber*& Previous() {
    static thread_local Fiber* previous = nullptr;
    return previous;
  }

  ucontext_t context_ = {};
  std::unique_ptr<std::byte[]> stack_;
  std::size_t stack_bytes_ = 0;
  [[maybe_unused]] const void* thread_bottom_ = nullptr;
  [[maybe_unused]] void* fake_stack_ = nullptr;
  [[maybe_unused]] void* tsan_ = nullptr;
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_FIBER_H_
