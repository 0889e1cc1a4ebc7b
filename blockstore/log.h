// LogCallback: where a store, a session, a publisher or a fetcher logs, for the operator.
//
// docs/operating.md has the lines, and what to do about each.
#ifndef WAYMARK_BLOCKSTORE_LOG_H_
#define WAYMARK_BLOCKSTORE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace waymark {

// Same numbers as in the C ABI.
enum class LogLevel : std::uint8_t { kInfo = 0, kWarning = 1, kError = 2 };

// Where lines go; by default to stderr. Nothing is logged on the step path, nor with a lock held:
// the landing thread logs, a session's gather thread, a publisher's, or the thread of a caller in a
// call off the step path. Several threads may log at once.
struct LogCallback {
  // `text` has `size` bytes and a terminating 0; it is valid during the call. The function must
  // return soon, must not throw, and must not call the store or the session; it may destroy them.
  // `context` must outlive the store: submitted steps land, and may be logged, after their session
  // is destroyed.
  using Function = void (*)(void* context, LogLevel level, const char* text, std::size_t size);
  Function function = nullptr;  // null: LogToStderr
  void* context = nullptr;
  std::shared_ptr<void> owner = {};  // of the context; released when nobody logs any more

  // Logs nothing.
  [[nodiscard]] static LogCallback Discard();
  // Whether lines go anywhere. Texts are only formatted if they do.
  [[nodiscard]] explicit operator bool() const { return function != Discard().function; }
  // Logs `text`.
  void operator()(LogLevel level, const std::string& text) const {
    (function != nullptr ? function : &LogToStderr)(context, level, text.c_str(), text.size());
  }

  // Writes "waymark: LEVEL: TEXT" and a line feed to stderr, of a process at most 20 lines in 10
  // seconds. The environment's WAYMARK_LOG is the least level, as it is when the first line is
  // written: "info", "warning" (the default), "error" or "off".
  static void LogToStderr(void*, LogLevel level, const char* text, std::size_t size);
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_LOG_H_
