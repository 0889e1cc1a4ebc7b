// LogLines: what a LogCallback was called with, and on which threads.
#ifndef WAYMARK_TESTS_SUPPORT_LOG_LINES_H_
#define WAYMARK_TESTS_SUPPORT_LOG_LINES_H_

#include <cstddef>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "blockstore/log.h"

namespace waymark {

// Warnings and errors; lines of level info are not kept. Any thread.
class LogLines {
 public:
  struct Line {
    LogLevel level = LogLevel::kInfo;
    std::string text;
    std::thread::id thread;
  };

  [[nodiscard]] LogCallback callback() { return {&OnLine, this}; }
  [[nodiscard]] std::vector<Line> lines() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }
  // Called with each line.
  std::function<void()> meanwhile;

 private:
  static void OnLine(void* context, LogLevel level, const char* text, std::size_t size) {
    LogLines& logged = *static_cast<LogLines*>(context);
    if (level == LogLevel::kInfo) return;
    if (logged.meanwhile) logged.meanwhile();
    const bool ends = std::strlen(text) == size;
    const std::lock_guard<std::mutex> lock(logged.mutex_);
    logged.lines_.push_back({level, ends ? std::string(text, size) : "no 0 behind the text",
                             std::this_thread::get_id()});
  }

  mutable std::mutex mutex_;
  std::vector<Line> lines_;
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_LOG_LINES_H_
