// LogLines: what the library logs in this process, until Python's thread waymark-log takes it.
//
// The library logs on threads that must not wait for the GIL: lines wait here.
#ifndef WAYMARK_PLUGIN_PYTHON_LOG_LINES_H_
#define WAYMARK_PLUGIN_PYTHON_LOG_LINES_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "blockstore/log.h"

namespace waymark_python {

class LogLines {
 public:
  using Line = std::pair<waymark::LogLevel, std::string>;
  // Those that wait; one more is only counted.
  static constexpr std::size_t kMost = 1000;

  // Of the process, whose threads may log to its end.
  [[nodiscard]] static LogLines& Get();
  // Logs there.
  [[nodiscard]] static waymark::LogCallback callback();

  // Any thread, without the GIL.
  void Add(waymark::LogLevel level, std::string_view text) noexcept;
  // Waits for lines, and takes them, and how many more there were. False: it has ended, and there
  // are none. Without the GIL.
  [[nodiscard]] bool Wait(std::vector<Line>& lines, std::uint64_t& lost);
  // Wait returns what is left, and then false.
  void End();
  // In a forked child, where another thread may have held the lock: there are no lines.
  static void Forked();

 private:
  LogLines() = default;
  static LogLines*& Instance();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Line> lines_;
  std::uint64_t lost_ = 0;
  bool ended_ = false;
};

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_LOG_LINES_H_
