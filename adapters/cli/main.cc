// The `waymark` tool: parses the command line and runs one subcommand. Exit codes: command.h.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "adapters/cli/bench.h"
#include "adapters/cli/check.h"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/convert.h"
#include "adapters/cli/demo_command.h"
#include "adapters/cli/diff.h"
#include "adapters/cli/inspect.h"
#include "adapters/cli/selftest.h"
#include "adapters/cli/trace.h"

#ifndef WAYMARK_VERSION
#define WAYMARK_VERSION "unknown"
#endif

namespace waymark::cli {
namespace {

// In the order of the help.
std::vector<std::unique_ptr<Command>> MakeCommands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(MakeDemoCommand());
  commands.push_back(MakeTraceCommand());
  commands.push_back(MakeCheckCommand());
  commands.push_back(MakeInspectCommand());
  commands.push_back(MakeDiffCommand());
  commands.push_back(MakeConvertCommand());
  commands.push_back(MakeSelftestCommand());
  commands.push_back(MakeBenchCommand());
  return commands;
}

int Main(int argc, char** argv) {
  CLI::App app{"Waymark remembers the route of every token through a mixture-of-experts model."};
  app.name("waymark");
  app.set_version_flag("--version", "waymark " WAYMARK_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 everything is right; 1 something is wrong (a row, a read, a layer);\n"
      "2 bad usage, an unreadable file or an impossible option.\n"
      "`waymark COMMAND --help` lists the options of a command.");

  const std::vector<std::unique_ptr<Command>> commands = MakeCommands();
  std::vector<CLI::App*> parsers;
  for (const std::unique_ptr<Command>& command : commands) {
    CLI::App* parser = app.add_subcommand(command->name(), command->summary());
    command->AddOptions(*parser);
    parsers.push_back(parser);
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // The parser throws for --help and --version, too, with code 0. Its other codes become
    // kExitUnusable.
    const std::string word = argc > 1 ? argv[1] : "";
    if (error.get_exit_code() != 0 && app.get_subcommands().empty() && !word.empty()) {
      std::fprintf(stderr, "waymark: there is no %s '%s'; `waymark --help` lists them\n",
                   word[0] == '-' ? "option" : "command", word.c_str());
      return kExitUnusable;
    }
    return app.exit(error) == 0 ? kExitOk : kExitUnusable;
  }
  for (std::size_t i = 0; i < commands.size(); ++i) {
    if (!parsers[i]->parsed()) continue;
    const ExitCode code = commands[i]->Run();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return Fail(commands[i]->name(), "standard output could not be written");
    }
    return code;
  }
  return kExitUnusable;
}

}  // namespace
}  // namespace waymark::cli

int main(int argc, char** argv) {
  try {
    return waymark::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    // A library may throw (out of memory, the parser): print one line all the same.
    std::fprintf(stderr, "waymark: %s\n", error.what());
    return waymark::cli::kExitUnusable;
  }
}
