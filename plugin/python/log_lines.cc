#include "plugin/python/log_lines.h"

#include "plugin/python/core.h"

namespace waymark_python {
namespace {

// [(level, text)], oldest first, and how many more there were; None: no more will come.
nb::object WaitLog() {
  std::vector<LogLines::Line> lines;
  std::uint64_t lost = 0;
  if (!Unlocked([&] { return LogLines::Get().Wait(lines, lost); })) return nb::none();
  nb::list out;
  for (const auto& [level, text] : lines) {
    // What is cut in the middle of a character still is a line.
    const nb::object line = nb::steal(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    out.append(nb::make_tuple(static_cast<int>(level), line));
  }
  return nb::make_tuple(out, lost);
}

}  // namespace

LogLines*& LogLines::Instance() {
  static LogLines* lines = new LogLines;
  return lines;
}

LogLines& LogLines::Get() {
  return *Instance();
}

void LogLines::Forked() {
  Instance() = new LogLines;
}

waymark::LogCallback LogLines::callback() {
  return {[](void*, waymark::LogLevel level, const char* text, std::size_t size) {
            Get().Add(level, {text, size});
          },
          nullptr};
}

void LogLines::Add(waymark::LogLevel level, std::string_view text) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (lines_.size() == kMost) {
      ++lost_;
      return;
    }
    lines_.emplace_back(level, std::string(text));
    changed_.notify_one();
  } catch (...) {  // no memory for a line: it is lost
  }
}

bool LogLines::Wait(std::vector<Line>& lines, std::uint64_t& lost) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_ || !lines_.empty(); });
  lines.swap(lines_);
  std::swap(lost, lost_);
  return !lines.empty();
}

void LogLines::End() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_one();
}

void BindLog(nb::module_& module) {
  module.def("_wait_log", &WaitLog,
             nb::sig("def _wait_log() -> tuple[list[tuple[int, str]], int] | None"));
  module.def("_end_log", [] { LogLines::Get().End(); });
  module.def("_forked_log", &LogLines::Forked);
}

}  // namespace waymark_python
