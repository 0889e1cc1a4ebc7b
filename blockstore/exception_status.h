// ExceptionStatus: an exception as a status, for functions that throw nothing.
#ifndef WAYMARK_BLOCKSTORE_EXCEPTION_STATUS_H_
#define WAYMARK_BLOCKSTORE_EXCEPTION_STATUS_H_

#include "absl/status/status.h"

namespace waymark {

// The status of the exception that is being handled; `doing` (static) is what threw it.
// ResourceExhausted if there was no memory, else Internal; the message names `doing` and the
// exception, and is empty if there is no memory for it. REQUIRES: within a catch block.
[[nodiscard]] absl::Status ExceptionStatus(const char* doing) noexcept;

// What `call` returns, a status or a StatusOr; the ExceptionStatus if it throws.
template <class Call>
auto Guarded(const char* doing, const Call& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    return ExceptionStatus(doing);
  }
}

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_EXCEPTION_STATUS_H_
