// Told: what a LogCallback heard, and on which threads.
#ifndef WAYMARK_TESTS_SUPPORT_TOLD_H_
#define WAYMARK_TESTS_SUPPORT_TOLD_H_

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

// Any thread.
class Told {
 public:
  struct Line {
    LogLevel level = LogLevel::kInfo;
    std::string text;
    std::thread::id thread;
  };

  [[nodiscard]] LogCallback callback() { return {&Hear, this}; }
  [[nodiscard]] std::vector<Line> lines() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }
  // Called as each line is heard.
  std::function<void()> meanwhile;

 private:
  static void Hear(void* context, LogLevel level, const char* text, std::size_t size) {
    Told& told = *static_cast<Told*>(context);
    if (told.meanwhile) told.meanwhile();
    const bool ends = std::strlen(text) == size;
    const std::lock_guard<std::mutex> lock(told.mutex_);
    told.lines_.push_back({level, ends ? std::string(text, size) : "no 0 behind the text",
                           std::this_thread::get_id()});
  }

  mutable std::mutex mutex_;
  std::vector<Line> lines_;
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_SUPPORT_TOLD_H_
