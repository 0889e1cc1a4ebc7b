#include "blockstore/log.h"

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string_view>

namespace waymark {
namespace {

constexpr std::array<const char*, 3> kLevels = {"INFO: ", "WARNING: ", "ERROR: "};

// One system call, so that lines of several threads stay apart. Without a lock, for which a forked
// child might wait for ever.
void Write(LogLevel level, std::string_view text) {
  std::array<iovec, 4> parts;
  const std::array<std::string_view, 4> texts = {
      "waymark: ", kLevels[static_cast<std::size_t>(level)], text, "\n"};
  for (std::size_t i = 0; i < parts.size(); ++i)
    parts[i] = {const_cast<char*>(texts[i].data()), texts[i].size()};
  static_cast<void>(!writev(STDERR_FILENO, parts.data(), parts.size()));
}

}  // namespace

LogCallback LogCallback::Discard() {
  return {[](void*, LogLevel, const char*, std::size_t) {}, nullptr};
}

void LogCallback::LogToStderr(void*, LogLevel level, const char* text, std::size_t size) {
  using std::chrono::steady_clock;
  static const int least = [] {
    const char* const given = std::getenv("WAYMARK_LOG");
    const std::string_view name = given != nullptr ? given : "";
    return name == "off" ? 3 : name == "error" ? 2 : name == "info" ? 0 : 1;
  }();
  static std::atomic<steady_clock::rep> until{0};
  static std::atomic<int> lines{0};
  if (static_cast<int>(level) < least) return;
  const steady_clock::time_point now = steady_clock::now();
  steady_clock::rep end = until.load();
  const steady_clock::rep next = (now + std::chrono::seconds(10)).time_since_epoch().count();
  if (now.time_since_epoch().count() >= end && until.compare_exchange_strong(end, next)) lines = 0;
  const int before = lines.fetch_add(1);
  if (before < 20) Write(level, {text, size});
  if (before == 20) Write(LogLevel::kWarning, "more than 20 lines in 10 s: lines are left out");
}

}  // namespace waymark
