#include <string>

#include "CLI/CLI.hpp"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/demo.h"

namespace waymark::cli {
namespace {

class DemoCommand : public Command {
 public:
  DemoCommand() : Command("demo", "Run rollouts on the embedded engine, and prove every route") {}
  void AddOptions(CLI::App& app) override {
    app.add_option("--groups", options_.groups, "Groups of samples that share a prompt")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--samples", options_.samples, "Samples a group")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    app.add_option("--turns", options_.turns, "Turns of each conversation")
        ->check(CLI::Range(1, 12))
        ->capture_default_str();
    app.add_option("--seed", options_.seed, "Seed of the weights and of the sampling")
        ->capture_default_str();
    app.add_option("--blocks", options_.blocks,
                   "KV blocks of " + std::to_string(kDemoBlockTokens) +
                       " tokens; fewer evict and preempt more")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
  }
  ExitCode Run() override {
    const absl::StatusOr<DemoResult> result = RunDemo(options_);
    if (!result.ok()) return Fail(name(), std::string(result.status().message()));
    PrintDemo(options_, *result);
    return result->proved() ? kExitOk : kExitFoundWrong;
  }

 private:
  DemoOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeDemoCommand() {
  return std::make_unique<DemoCommand>();
}

}  // namespace waymark::cli
