// Command: one subcommand of the `waymark` tool, and how it registers.
//
// A subcommand `x` is the file pair x.h, x.cc: the header declares `std::unique_ptr<Command>
// MakeXCommand()`, main.cc lists it in MakeCommands(), and CMakeLists.txt names the sources.
// Nothing outside this folder includes any of it.
#ifndef WAYMARK_ADAPTERS_CLI_COMMAND_H_
#define WAYMARK_ADAPTERS_CLI_COMMAND_H_

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace waymark::cli {

// What the process ends with. Nothing else is ever returned.
enum ExitCode : int {
  kExitOk = 0,          // did what was asked, and everything is right
  kExitFoundWrong = 1,  // did what was asked, and something is wrong (a row, a read, a layer)
  kExitUnusable =
      2,  // could not do it: bad usage, a missing or malformed file, an impossible option
};

// Lives for the whole run. Only one command's Run is called, once, on the main thread.
class Command {
 public:
  virtual ~Command() = default;

  // The word after `waymark`, and its line in the help.
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::string summary() const = 0;
  // Adds options and arguments; bind them to members of this object.
  virtual void AddOptions(CLI::App& app) = 0;
  // Does the work after the options were parsed. Results go to stdout, everything else to stderr.
  // Errors: `return Fail(name(), message)` (console.h).
  [[nodiscard]] virtual ExitCode Run() = 0;
};

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_COMMAND_H_
