// The `waymark` tool: parses the command line and runs one subcommand. Exit codes: command.h.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"

#ifndef WAYMARK_VERSION
#define WAYMARK_VERSION "unknown"
#endif

namespace waymark::cli {

namespace {

int Main(int argc, char** argv) {
  CLI::App app{"Waymark remembers the route of every token through a mixture-of-experts model."};
  app.name("waymark");
  app.set_version_flag("--version", "waymark " WAYMARK_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 everything is right; 1 something is wrong (a row, a read, a layer);\n"
      "2 bad usage, an unreadable file, an impossible option, or nothing was checked.\n"
      "`waymark COMMAND --help` lists the options of a command.");

  const std::unique_ptr<Command> commands[] = {
      // in the order of the help
      MakeDemoCommand(), MakeTraceCommand(),   MakeCheckCommand(), MakeInspectCommand(),
      MakeDiffCommand(), MakeConvertCommand(), MakeBenchCommand()};
  for (const std::unique_ptr<Command>& command : commands) {
    command->AddOptions(*app.add_subcommand(command->name(), command->summary()));
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // The parser throws for --help and --version, too, with code 0.
    if (error.get_exit_code() == 0) return app.exit(error) == 0 ? kExitOk : kExitUnusable;
    const std::vector<CLI::App*> parsed = app.get_subcommands();
    if (!parsed.empty()) {
      return Fail(parsed[0]->get_name(), std::string(error.what()) + "; --help lists the options");
    }
    const std::string word = argc > 1 ? argv[1] : "";
    const char* const what = word[0] == '-' ? "option" : "command";
    std::fprintf(stderr, "waymark: %s; `waymark --help` lists them\n",
                 word.empty() ? "a command is required"
                              : ("there is no " + std::string(what) + " '" + word + "'").c_str());
    return kExitUnusable;
  }
  for (const std::unique_ptr<Command>& command : commands) {
    if (!app.got_subcommand(command->name())) continue;
    const ExitCode code = command->Run();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return Fail(command->name(), "standard output could not be written");
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
