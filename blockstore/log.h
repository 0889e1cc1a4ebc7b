// LogCallback: whom a store or a session tells what an operator should read.
//
// Told are: pages that the audit voided (warning), a layer that was silent for the first time
// (warning), a transport that has failed (error); each once. Counters say the rest.
#ifndef WAYMARK_BLOCKSTORE_LOG_H_
#define WAYMARK_BLOCKSTORE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace waymark {

// The numbers are those of the C ABI.
enum class LogLevel : std::uint8_t { kInfo = 0, kWarning = 1, kError = 2 };

// Null is off, and costs a null check. Called without a lock held: on the landing thread, or within
// a call that is not of the step path on its caller's thread; never within one that is. Several
// threads may call it at once.
struct LogCallback {
  // `text`: `size` bytes and a 0 behind them, which live for the call. Must return soon, not throw,
  // and not call the store or session. `context` must live as long as the store: steps that were
  // submitted land, and tell, after their session is gone.
  void (*function)(void* context, LogLevel level, const char* text, std::size_t size) = nullptr;
  void* context = nullptr;

  // Whether anybody listens: texts are made for those only.
  [[nodiscard]] explicit operator bool() const { return function != nullptr; }
  // Tells `text`; nothing when off.
  void operator()(LogLevel level, const std::string& text) const {
    if (function != nullptr) function(context, level, text.c_str(), text.size());
  }
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_LOG_H_
