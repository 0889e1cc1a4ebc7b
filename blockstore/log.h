// LogCallback: receives warnings and errors of a store or a session, for the operator.
//
// docs/operating.md has the lines, and what to do about each.
#ifndef WAYMARK_BLOCKSTORE_LOG_H_
#define WAYMARK_BLOCKSTORE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace waymark {

// Same numbers as in the C ABI.
enum class LogLevel : std::uint8_t { kInfo = 0, kWarning = 1, kError = 2 };

// A null `function` turns logging off. The function is never called on the step path and never with
// a lock held. It is called on the landing thread, on a session's gather thread, or on the thread
// of a caller whose call is not part of the step path. Several threads may call it at the same
// time.
struct LogCallback {
  // `text` has `size` bytes and a terminating 0; it is valid during the call. The function must
  // return soon, must not throw, and must not call the store or the session. `context` must outlive
  // the store: submitted steps land, and may be logged, after their session is destroyed.
  void (*function)(void* context, LogLevel level, const char* text, std::size_t size) = nullptr;
  void* context = nullptr;

  // Whether logging is on. Texts are only formatted if it is.
  [[nodiscard]] explicit operator bool() const { return function != nullptr; }
  // Logs `text`. Does nothing if logging is off.
  void operator()(LogLevel level, const std::string& text) const {
    if (function != nullptr) function(context, level, text.c_str(), text.size());
  }
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_LOG_H_
