// Command: one subcommand of the `waymark` tool.
//
// To add a subcommand `x`, write x.cc, which defines MakeXCommand, declare that below, add the call
// in main.cc, and the file to CMakeLists.txt. Only this folder includes these
// headers. The parser (CLI11, slow to compile) is in main.cc alone.
#ifndef WAYMARK_ADAPTERS_CLI_COMMAND_H_
#define WAYMARK_ADAPTERS_CLI_COMMAND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace waymark::cli {

// The exit code of the process. There are no others.
enum ExitCode : int {
  kExitOk = 0,          // the command succeeded and found nothing wrong
  kExitFoundWrong = 1,  // the command succeeded and found something wrong (a row, a read, a layer)
  kExitUnusable = 2,    // the command failed: bad usage, a missing or malformed file, an impossible
                        // option; or there was nothing to check
};

// The options of a command: binds words of its command line to variables.
class Options {
 public:
  // One of them. Each call refines it.
  class Option {
   public:
    explicit Option(CLI::Option* option) : option_(option) {}
    Option& Required();
    // What stands for the value in the help.
    Option& Type(const std::string& name);
    // Values outside are refused, the bounds are not.
    Option& Range(std::int64_t least, std::int64_t most);
    Option& RealRange(double least, double most);
    Option& OneOf(const std::vector<std::string>& words);
    // The help has the variable's value of now as the default.
    Option& ShowDefault();

   private:
    CLI::Option* option_;
  };

  explicit Options(CLI::App& app) : app_(app) {}
  // `name`: "--x" is an option, "X" a word of its own. `value` must outlive the parser: a string, a
  // double, or an integer of 32 or 64 bits.
  template <class Value>
  Option Add(const std::string& name, Value& value, const std::string& what);
  void Flag(const std::string& name, bool& value, const std::string& what);
  // What the help ends with.
  void Footer(const std::string& text);

 private:
  CLI::App& app_;
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
  virtual void AddOptions(Options& app) = 0;
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
[[nodiscard]] std::unique_ptr<Command> MakeSelftestCommand();
[[nodiscard]] std::unique_ptr<Command> MakeTraceCommand();

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_COMMAND_H_
