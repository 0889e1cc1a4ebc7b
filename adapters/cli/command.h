// Command: one subcommand of the `waymark` tool.
//
// To add a subcommand `x`, write x.h, which declares `std::unique_ptr<Command> MakeXCommand()`, and
// x.cc, add the call to MakeCommands() in main.cc, and the files to CMakeLists.txt. Nothing outside
// this folder includes these headers.
#ifndef WAYMARK_ADAPTERS_CLI_COMMAND_H_
#define WAYMARK_ADAPTERS_CLI_COMMAND_H_

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace waymark::cli {

// The exit code of the process. There are no others.
enum ExitCode : int {
  kExitOk = 0,          // the command succeeded and found nothing wrong
  kExitFoundWrong = 1,  // the command succeeded and found something wrong (a row, a read, a layer)
  kExitUnusable =
      2,  // the command failed: bad usage, a missing or malformed file, an impossible option
};

// Exists for the whole run of the process. The Run of one command is called, once, on the main
// thread.
class Command {
 public:
  virtual ~Command() = default;

  // The word after `waymark` on the command line, and the command's line in the help.
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string summary() const = 0;
  // Adds the command's options and arguments, bound to members of this object.
  virtual void AddOptions(CLI::App& app) = 0;
  // Runs the command after the options were parsed. Prints results to stdout and everything else to
  // stderr. On errors: `return Fail(name(), message)` (console.h).
  [[nodiscard]] virtual ExitCode Run() = 0;
};

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_COMMAND_H_
