#include <string>

#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/demo.h"

namespace waymark::cli {
namespace {

class DemoCommand : public Command {
 public:
  DemoCommand() : Command("demo", "Run rollouts on the embedded engine, and prove every route") {}
  void AddOptions(Options& app) override {
    app.Add("--groups", options_.groups, "Groups of samples that share a prompt")
        .Range(1, 1000)
        .ShowDefault();
    app.Add("--samples", options_.samples, "Samples a group").Range(1, 64).ShowDefault();
    app.Add("--turns", options_.turns, "Turns of each conversation").Range(1, 12).ShowDefault();
    app.Add("--seed", options_.seed, "Seed of the weights and of the sampling").ShowDefault();
    app.Add("--blocks", options_.blocks,
            "KV blocks of " + std::to_string(kDemoBlockTokens) +
                " tokens; fewer evict and preempt more")
        .Range(1, 1 << 20)
        .ShowDefault();
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
