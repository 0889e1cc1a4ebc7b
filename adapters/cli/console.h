// Output that the subcommands share: errors, progress, and numbers and tables for people.
#ifndef WAYMARK_ADAPTERS_CLI_CONSOLE_H_
#define WAYMARK_ADAPTERS_CLI_CONSOLE_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "adapters/cli/command.h"

namespace waymark::cli {

// Writes "waymark <command>: <message>" to stderr and returns kExitUnusable.
ExitCode Fail(const std::string& command, const std::string& message);

// A check of an option beside CLI::Range, to which NaN is in every range.
[[nodiscard]] std::string IsNumber(const std::string& text);

// Whether both paths lead to the same file, so that writing one would lose the other.
[[nodiscard]] bool SameFile(const std::string& a, const std::string& b);

// A line of progress on stderr, rewritten in place at most ten times per second. Prints nothing
// unless stderr is a terminal. The destructor erases it, so that later output starts on a clean
// line.
class Progress {
 public:
  // `what`: the first words of the line, e.g. "requests".
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows "<what> <done>/<total> (p %)  <note>", or "<what> <done>  <note>" if total is 0
  // (unknown).
  void Show(std::uint64_t done, std::uint64_t total, const std::string& note = "");
  // Erases the line.
  void Clear();

 private:
  std::string what_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_{};
};

// 1234567 -> "1,234,567".
[[nodiscard]] std::string WithCommas(std::uint64_t value);
// WithCommas of a value that is not negative.
[[nodiscard]] std::string Count(std::int64_t value);
// A share of 1 in percent: 0.123456 -> "12.35 %". "100 %" only of 1 itself.
[[nodiscard]] std::string Percent(double share);
// `value` with exactly `digits` digits after the point.
[[nodiscard]] std::string FixedDigits(double value, int digits);

// A table with two columns: names, aligned left, and values, aligned right.
class Table {
 public:
  // Adds a line. An empty value makes it a heading; both empty make a blank line.
  void Add(std::string name, std::string value);
  // All lines, indented by two spaces, each with its newline.
  [[nodiscard]] std::string ToString() const;

 private:
  std::vector<std::pair<std::string, std::string>> lines_;
};

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_CONSOLE_H_
