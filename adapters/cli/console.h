// What the subcommands share on the terminal: errors, progress, numbers and tables for people.
#ifndef WAYMARK_ADAPTERS_CLI_CONSOLE_H_
#define WAYMARK_ADAPTERS_CLI_CONSOLE_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "adapters/cli/command.h"

namespace waymark::cli {

// Writes "waymark <command>: <message>" to stderr and returns kExitUnusable.
ExitCode Fail(const std::string& command, const std::string& message);

// One line on stderr that is rewritten in place, at most ten times a second; silent unless stderr
// is a terminal. Erased when destroyed, so that what follows starts on a clean line.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows "<what> <done>/<total> (p %) <note>"; total 0: unknown.
  void Show(std::uint64_t done, std::uint64_t total, const std::string& note = "");
  // Erases the line now.
  void Clear();

 private:
  std::string what_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_{};
};

// 1234567 -> "1,234,567".
[[nodiscard]] std::string WithCommas(std::uint64_t value);
// Three significant figures and a unit of 1000: 15200000 -> "15.2 MB".
[[nodiscard]] std::string HumanBytes(std::uint64_t bytes);
// WithCommas of a value that is not negative.
[[nodiscard]] std::string Count(std::int64_t value);
// A share of 1 in percent: 0.123456 -> "12.35 %". "100 %" only of 1 itself.
[[nodiscard]] std::string Percent(double share);
// The share that `part` is of `whole`, in percent, to one digit; "-" of nothing.
[[nodiscard]] std::string Percent(std::uint64_t part, std::uint64_t whole);
// Fixed `digits` after the point.
[[nodiscard]] std::string FixedDigits(double value, int digits);

// Two columns: names to the left, values to the right.
class Table {
 public:
  // A row; an empty value makes a heading, and both empty a blank line.
  void Add(std::string name, std::string value);
  // All lines, each ended by a newline, indented by two spaces.
  [[nodiscard]] std::string ToString() const;

 private:
  struct Line {
    std::string name, value;
  };
  std::vector<Line> lines_;
};

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_CONSOLE_H_
