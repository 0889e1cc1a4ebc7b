// What the library logs in this process, until Python's thread waymark-log takes it: the library
// logs on threads that must not wait for the GIL.
#include <condition_variable>
#include <mutex>
#include <vector>

#include "plugin/python/core.h"

namespace waymark_python {
namespace {

struct LogQueue {
  // Those that wait; one more is only counted.
  static constexpr std::size_t kMost = 1000;

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::pair<waymark::LogLevel, std::string>> lines;
  std::uint64_t lost = 0;
  bool ended = false;
};

// Never destroyed: threads may log to the end of the process. A forked child, where another thread
// may have held the lock, gets its own.
LogQueue*& TheLog() {
  static LogQueue* lines = new LogQueue;
  return lines;
}

// Waits for lines: [(level, text)], oldest first, and how many more there were; None: it has ended.
nb::object WaitLog() {
  LogQueue& log = *TheLog();
  std::vector<std::pair<waymark::LogLevel, std::string>> lines;
  const std::uint64_t lost = Unlocked([&] {
    std::unique_lock lock(log.mutex);
    log.changed.wait(lock, [&log] { return log.ended || !log.lines.empty(); });
    lines.swap(log.lines);
    return std::exchange(log.lost, 0);
  });
  if (lines.empty()) return nb::none();
  nb::list out;
  for (const auto& [level, text] : lines) {
    // What is cut in the middle of a character still is a line.
    const nb::object line = nb::steal(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    out.append(nb::make_tuple(static_cast<int>(level), line));
  }
  return nb::make_tuple(out, lost);
}

void EndLog() {
  const std::lock_guard lock(TheLog()->mutex);
  TheLog()->ended = true;
  TheLog()->changed.notify_one();
}

}  // namespace

void AddLogLine(void*, waymark::LogLevel level, const char* text, std::size_t size) {
  LogQueue& log = *TheLog();
  try {
    const std::lock_guard lock(log.mutex);
    if (log.lines.size() == LogQueue::kMost) {
      ++log.lost;
      return;
    }
    log.lines.emplace_back(level, std::string(text, size));
    log.changed.notify_one();
  } catch (...) {  // no memory for a line: it is lost
  }
}

void BindLog(nb::module_& module) {
  module.def("_wait_log", &WaitLog,
             nb::sig("def _wait_log() -> tuple[list[tuple[int, str]], int] | None"));
  module.def("_end_log", &EndLog);
  module.def("_forked_log", [] { TheLog() = new LogQueue; });
}

}  // namespace waymark_python
