// StoreFailure: why a store has failed, if it has. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_STORE_FAILURE_H_
#define WAYMARK_BLOCKSTORE_STORE_STORE_FAILURE_H_

#include <atomic>
#include <cstdio>
#include <exception>
#include <new>

#include "absl/status/status.h"

namespace waymark {

// A store has failed when an exception of its own work was caught: no memory, as a rule. Its tables
// may be half changed, so from then on they are not used. Any thread.
class StoreFailure {
 public:
  [[nodiscard]] bool failed() const { return state_.load(std::memory_order_acquire) != kNone; }
  // The store has failed by the exception that is being handled; `doing` (static) is what threw it.
  // Only the first one is kept. Neither allocates nor throws. REQUIRES: within a catch block.
  void Catch(const char* doing) noexcept {
    int none = kNone;
    if (!state_.compare_exchange_strong(none, kSetting, std::memory_order_relaxed)) return;
    const char* what = "an exception";
    try {
      throw;
    } catch (const std::bad_alloc&) {
      no_memory_ = true;
      what = "no memory";
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
    std::snprintf(text_, sizeof(text_), "the store has failed: %s, while %s", what, doing);
    state_.store(kSet, std::memory_order_release);
  }
  // OK unless failed(). ResourceExhausted if there was no memory, else Internal; the message names
  // what was being done, and the exception. Allocates.
  [[nodiscard]] absl::Status status() const {
    const int state = state_.load(std::memory_order_acquire);
    if (state == kNone) return absl::OkStatus();
    if (state == kSet && no_memory_) return absl::ResourceExhaustedError(text());
    return absl::InternalError(text());
  }
  // The message; empty unless failed().
  [[nodiscard]] const char* text() const {
    const int state = state_.load(std::memory_order_acquire);
    return state == kSet ? text_ : state == kSetting ? "the store has failed" : "";
  }

 private:
  enum State : int { kNone, kSetting, kSet };
  std::atomic<int> state_{kNone};
  bool no_memory_ = false;
  char text_[160] = {};
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_FAILURE_H_
