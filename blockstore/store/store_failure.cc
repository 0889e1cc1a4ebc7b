#include "blockstore/store/store_failure.h"

#include <cstdio>
#include <exception>
#include <new>

namespace waymark {

void StoreFailure::Catch(const char* doing) noexcept {
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

const char* StoreFailure::text() const {
  const int state = state_.load(std::memory_order_acquire);
  return state == kSet ? text_ : state == kSetting ? "the store has failed" : "";
}

absl::Status StoreFailure::status() const {
  const int state = state_.load(std::memory_order_acquire);
  if (state == kNone) return absl::OkStatus();
  if (state == kSet && no_memory_) return absl::ResourceExhaustedError(text());
  return absl::InternalError(text());
}

}  // namespace waymark
