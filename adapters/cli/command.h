// Command: one subcommand of the `waymark` tool.
//
// To add a subcommand `x`, write x.cc, which defines MakeXCommand, declare that below, add the call
// in main.cc, and the file to CMakeLists.txt. Only this folder includes these headers.
#ifndef WAYMARK_ADAPTERS_CLI_COMMAND_H_
#define WAYMARK_ADAPTERS_CLI_COMMAND_H_

#include <memory>
#include <string>
#include <utility>

namespace CLI {
class App;
}  // namespace CLI

namespace waymark::cli {

// The exit code of the process. There are no others.
enum ExitCode : int {
  kExitOk = 0,          // the command succeeded and found nothing wrong
  kExitFoundWrong = 1,  // the command succeeded and found something wrong (a row, a read, a layer)
  kExitUnusable = 2,    // the command failed: bad usage, a missing or malformed file, an impossible
                        // option; or there was nothing to check
};

// Exists for the whole run of the process. The Run of one command is called, once, on the main
// thread.
class Command {
 public:
  // The word after `waymark` on the command line, and the command's line in the help.
  Command(std::string name, std::string summary)
      : name_(std::move(name)), summary_(std::move(summary)) {}
  virtual ~Command() = default;
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::string& summary() const { return summary_; }
  // Adds the command's options and arguments, bound to members of this object.
  virtual void AddOptions(CLI::App& app) = 0;
  // Runs the command after the options were parsed. Prints results to stdout and everything else to
  // stderr. On errors: `return Fail(name(), message)` (console.h).
  [[nodiscard]] virtual ExitCode Run() = 0;

 private:
  const std::string name_, summary_;
};

// The subcommands.
[[nodiscard]] std::unique_ptr<Command> MakeBenchCommand();
[[nodiscard]] std::unique_ptr<Command> MakeCheckCommand();
[[nodiscard]] std::unique_ptr<Command> MakeConvertCommand();
[[nodiscard]] std::unique_ptr<Command> MakeDemoCommand();
[[nodiscard]] std::unique_ptr<Command> MakeDiffCommand();
[[nodiscard]] std::unique_ptr<Command> MakeInspectCommand();
[[nodiscard]] std::unique_ptr<Command> MakeTraceCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_COMMAND_H_
