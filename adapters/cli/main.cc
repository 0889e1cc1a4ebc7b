// The `waymark` tool: parses the command line and runs one subcommand. Exit codes: command.h.
#include <cmath>
#include <cstdio>
#include <cstdlib>
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

Options::Option& Options::Option::Required() {
  option_->required();
  return *this;
}
Options::Option& Options::Option::Type(const std::string& name) {
  option_->type_name(name);
  return *this;
}
Options::Option& Options::Option::Range(std::int64_t least, std::int64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}
Options::Option& Options::Option::RealRange(double least, double most) {
  option_->check(CLI::Range(least, most));
  option_->check([](const std::string& text) {
    return std::isnan(std::strtod(text.c_str(), nullptr)) ? "Value nan is no number" : "";
  });
  return *this;
}
Options::Option& Options::Option::OneOf(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  return *this;
}
Options::Option& Options::Option::ShowDefault() {
  option_->capture_default_str();
  return *this;
}

template <class Value>
Options::Option Options::Add(const std::string& name, Value& value, const std::string& what) {
  return Option(app_.add_option(name, value, what));
}
template Options::Option Options::Add(const std::string&, std::string&, const std::string&);
template Options::Option Options::Add(const std::string&, double&, const std::string&);
template Options::Option Options::Add(const std::string&, std::int32_t&, const std::string&);
template Options::Option Options::Add(const std::string&, std::int64_t&, const std::string&);
template Options::Option Options::Add(const std::string&, std::uint64_t&, const std::string&);

void Options::Flag(const std::string& name, bool& value, const std::string& what) {
  app_.add_flag(name, value, what);
}
void Options::Footer(const std::string& text) {
  app_.footer(text);
}

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
      MakeDemoCommand(), MakeTraceCommand(),   MakeCheckCommand(),    MakeInspectCommand(),
      MakeDiffCommand(), MakeConvertCommand(), MakeSelftestCommand(), MakeBenchCommand()};
  for (const std::unique_ptr<Command>& command : commands) {
    CLI::App* parser = app.add_subcommand(command->name(), command->summary());
    Options options(*parser);
    command->AddOptions(options);
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
