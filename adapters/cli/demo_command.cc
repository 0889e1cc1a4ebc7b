#include <cstdio>
#include <string>

#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/demo.h"
#include "nlohmann/json.hpp"

namespace waymark::cli {
namespace {

class DemoCommand : public Command {
 public:
  std::string name() const override { return "demo"; }
  std::string summary() const override {
    return "run rollouts on the embedded engine and prove every route";
  }
  void AddOptions(Options& app) override;
  ExitCode Run() override;

 private:
  void PrintJson(const DemoResult& result) const;

  DemoOptions options_;
  bool json_ = false;
};

void DemoCommand::AddOptions(Options& app) {
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
  app.Flag("--json", json_, "Print one JSON object instead of the table");
}

void DemoCommand::PrintJson(const DemoResult& r) const {
  nlohmann::ordered_json missing = nlohmann::ordered_json::object();
  for (int reason = 1; reason < kNumReasons; ++reason) {
    missing[std::string(ReasonName(static_cast<Reason>(reason)))] =
        r.missing[static_cast<size_t>(reason)];
  }
  const LatencyHistogram& capture = r.engine.capture_time;
  const nlohmann::ordered_json object = {
      {"groups", options_.groups},
      {"samples", options_.samples},
      {"turns", options_.turns},
      {"seed", options_.seed},
      {"blocks", options_.blocks},
      {"requests_finished", r.requests},
      {"tokens", r.tokens},
      {"computed_tokens", r.engine.computed_tokens},
      {"prefix_hit_tokens", r.engine.prefix_hit_tokens},
      {"preemptions", r.engine.preemptions},
      {"evictions", r.evictions},
      {"steps", r.engine.steps},
      {"rows_captured", r.store.rows_landed},
      {"rows_checked", r.rows},
      {"rows_reused", r.rows_reused},
      {"rows_wrong", r.rows_wrong},
      {"rows_unexplained", r.rows_unexplained},
      {"rows_missing", missing},
      {"row_bytes", r.row_bytes},
      {"json_bytes", r.json_bytes},
      {"step_us",
       {{"p50", static_cast<double>(capture.Quantile(0.5)) / 1e3},
        {"p99", static_cast<double>(capture.Quantile(0.99)) / 1e3}}},
      {"rollout_seconds", r.rollout_seconds},
      {"check_seconds", r.check_seconds}};
  std::printf("%s\n", object.dump(2).c_str());
}

ExitCode DemoCommand::Run() {
  const absl::StatusOr<DemoResult> result = RunDemo(options_);
  if (!result.ok()) return Fail(name(), std::string(result.status().message()));
  if (json_) {
    PrintJson(*result);
  } else {
    PrintDemo(options_, *result);
  }
  return result->proved() ? kExitOk : kExitFoundWrong;
}

}  // namespace

std::unique_ptr<Command> MakeDemoCommand() {
  return std::make_unique<DemoCommand>();
}

}  // namespace waymark::cli
