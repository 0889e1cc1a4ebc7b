#include "adapters/cli/console.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace waymark::cli {

ExitCode Fail(const std::string& command, const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "waymark %s: %s\n", command.c_str(), message.c_str());
  return kExitUnusable;
}

std::string IsNumber(const std::string& text) {
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? "Value nan is no number" : "";
}

bool SameFile(const std::string& a, const std::string& b) {
  std::error_code missing;
  return std::filesystem::equivalent(a, b, missing);
}

Progress::Progress(std::string what) : what_(std::move(what)), terminal_(isatty(STDERR_FILENO)) {
  const char* term = std::getenv("TERM");
  if (term != nullptr && std::string(term) == "dumb") terminal_ = false;
}

Progress::~Progress() {
  Clear();
}

void Progress::Show(std::uint64_t done, std::uint64_t total, const std::string& note) {
  if (!terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  std::string line = what_ + " " + WithCommas(done);
  if (total > 0) {
    line += "/" + WithCommas(total) + " (" +
            FixedDigits(100.0 * static_cast<double>(done) / static_cast<double>(total), 1) + " %)";
  }
  if (!note.empty()) line += "  " + note;
  std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void Progress::Clear() {
  if (!shown_) return;
  std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

std::string WithCommas(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string FixedDigits(double value, int digits) {
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  return buffer.data();
}

std::string Count(std::int64_t value) {
  return WithCommas(static_cast<std::uint64_t>(value));
}

std::string Percent(double share) {
  if (share < 1 && share >= 0.99995) return "99.99 %";
  return FixedDigits(100 * share, 2) + " %";
}

void Table::Add(std::string name, std::string value) {
  lines_.emplace_back(std::move(name), std::move(value));
}

std::string Table::ToString() const {
  std::size_t name_width = 0;
  std::size_t value_width = 0;
  for (const auto& [name, value] : lines_) {
    if (value.empty()) continue;
    name_width = std::max(name_width, name.size());
    value_width = std::max(value_width, value.size());
  }
  std::string out;
  for (const auto& [name, value] : lines_) {
    if (!name.empty() || !value.empty()) out += "  " + name;
    if (!value.empty()) {
      out.append(name_width - name.size() + 2 + value_width - value.size(), ' ');
      out += value;
    }
    out += '\n';
  }
  return out;
}

}  // namespace waymark::cli
