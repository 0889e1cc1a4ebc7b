#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/reference/engine.h"
#include "adapters/reference/moe_model.h"
#include "plugin/capture/self_test.h"

namespace waymark::cli {
namespace {

using reference::Engine;
using reference::EngineOptions;
using reference::MoeModel;
using reference::MoeModelConfig;

constexpr int kRows = 32;

absl::StatusOr<SelfTestReport> TestEngine(const MoeModel& model,
                                          const std::vector<int>& silent_layers) {
  EngineOptions options;
  options.num_blocks = 64;
  options.silent_layers = silent_layers;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(&model, options);
  if (!engine.ok()) return engine.status();
  return (*engine)->SelfTest(kRows);
}

class SelftestCommand : public Command {
 public:
  SelftestCommand()
      : Command("selftest",
                "Silence a layer of the embedded engine, and show that the self-test names it") {}
  void AddOptions(CLI::App& app) override {
    app.add_option("--silent-layer", silent_layer_, "The captured layer to silence")
        ->check(CLI::Range(0, MoeModelConfig().num_moe_layers() - 1))
        ->capture_default_str();
  }
  ExitCode Run() override {
    const MoeModelConfig config;
    const MoeModel model(config);
    absl::StatusOr<SelfTestReport> sound = TestEngine(model, {});
    if (!sound.ok()) return Fail(name(), std::string(sound.status().message()));
    absl::StatusOr<SelfTestReport> silenced = TestEngine(model, {silent_layer_});
    if (!silenced.ok()) return Fail(name(), std::string(silenced.status().message()));

    const std::string router = reference::RouterName(config, silent_layer_);
    std::printf("The engine, %d rows through %d layers:\n%s\n\n", sound->rows, sound->layers,
                sound->ToString().c_str());
    std::printf("The same engine with %s silenced:\n%s\n\n", router.c_str(),
                silenced->ToString().c_str());

    const bool clean = sound->ok();
    const bool named =
        silenced->findings.size() == 1 && silenced->findings[0].layer == silent_layer_ &&
        silenced->findings[0].module == router &&
        silenced->findings[0].fault == LayerFault::kSilent && silenced->findings[0].rows == kRows;
    if (clean && named) {
      std::printf("The self-test named the silent layer and no other.\n");
      return kExitOk;
    }
    if (!clean) std::printf("WRONG: the self-test of the unchanged engine has findings.\n");
    if (!named)
      std::printf("WRONG: the self-test did not name the silent layer, or named others.\n");
    return kExitFoundWrong;
  }

 private:
  int silent_layer_ = 2;
};

}  // namespace

std::unique_ptr<Command> MakeSelftestCommand() {
  return std::make_unique<SelftestCommand>();
}

}  // namespace waymark::cli
