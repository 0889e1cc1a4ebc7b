#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/simulators/trace.h"
#include "blockstore/flight/writer.h"
#include "nlohmann/json.hpp"

namespace waymark::cli {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const sim::LatencyQuantiles& quantiles) {
  return Json{{"p50", quantiles.p50}, {"p99", quantiles.p99}};
}

Json ToJson(const sim::TraceResult& result) {
  Json missing = Json::object();
  for (int reason = 1; reason < kNumReasons; ++reason) {
    missing[std::string(ReasonName(static_cast<Reason>(reason)))] =
        result.rows_missing[static_cast<std::size_t>(reason)];
  }
  return Json{{"requests_finished", result.requests_finished},
              {"requests_skipped", result.requests_skipped},
              {"rows_checked", result.rows_checked},
              {"rows_wrong", result.rows_wrong},
              {"rows_unexplained", result.rows_unexplained},
              {"rows_missing", std::move(missing)},
              {"rows_kept", result.rows_kept},
              {"rows_by_key", result.rows_by_key},
              {"prefix_hit_tokens", result.prefix_hit_tokens},
              {"computed_tokens", result.computed_tokens},
              {"preemptions", result.preemptions},
              {"evictions", result.evictions},
              {"page_evictions", result.page_evictions},
              {"steps", result.steps},
              {"steps_dropped", result.steps_dropped},
              {"step_us", ToJson(result.step_us)},
              {"land_us", ToJson(result.land_us)},
              {"snapshot_us", ToJson(result.snapshot_us)},
              {"store_bytes_peak", result.store_bytes_peak},
              {"store_bytes_reserved", result.store_bytes_reserved},
              {"seconds", result.seconds},
              {"findings", result.findings}};
}

std::string Microseconds(const sim::LatencyQuantiles& quantiles) {
  return FixedDigits(quantiles.p50, 1) + " / " + FixedDigits(quantiles.p99, 1) + " us";
}

void Print(const sim::TraceOptions& options, const sim::TraceResult& result) {
  Table table;
  table.Add(options.engine == sim::EngineKind::kVllm ? "vLLM-like engine" : "Megatron-like engine",
            "");
  table.Add("requests finished", Count(result.requests_finished));
  if (result.requests_skipped > 0) {
    table.Add("requests that cannot fit, skipped", Count(result.requests_skipped));
  }
  table.Add("steps", Count(result.steps));
  if (result.steps_dropped > 0) table.Add("steps dropped", Count(result.steps_dropped));
  table.Add("tokens computed", Count(result.computed_tokens));
  table.Add("tokens taken from the prefix cache", Count(result.prefix_hit_tokens));
  table.Add("preemptions", Count(result.preemptions));
  table.Add("cached blocks evicted", Count(result.evictions));
  table.Add("", "");
  table.Add("rows checked against the oracle", Count(result.rows_checked));
  for (int reason = 1; reason < kNumReasons; ++reason) {
    const std::int64_t rows = result.rows_missing[static_cast<std::size_t>(reason)];
    if (rows == 0) continue;
    table.Add("  missing, " + std::string(ReasonName(static_cast<Reason>(reason))), Count(rows));
  }
  table.Add("  missing without explanation", Count(result.rows_unexplained));
  table.Add("  wrong", Count(result.rows_wrong));
  table.Add("", "");
  table.Add("a step on the engine's thread, p50 / p99", Microseconds(result.step_us));
  table.Add("landing a step, p50 / p99", Microseconds(result.land_us));
  table.Add("a snapshot, p50 / p99", Microseconds(result.snapshot_us));
  table.Add("store memory, peak", HumanBytes(static_cast<std::uint64_t>(result.store_bytes_peak)));
  table.Add("run time", FixedDigits(result.seconds, 1) + " s");
  std::printf("%s\n", table.ToString().c_str());
  for (const std::string& finding : result.findings)
    std::printf("%s\n", finding.c_str());
  std::printf("%s\n", result.clean()
                          ? "No row is wrong, and every missing row is explained."
                          : "NOT RIGHT: rows are wrong, or missing without explanation.");
}

class TraceCommand final : public Command {
 public:
  std::string name() const override { return "trace"; }
  std::string summary() const override {
    return "Schedule a real block trace through an engine simulator, and check every row";
  }

  void AddOptions(Options& app) override {
    sim::TraceOptions& o = options_;
    app.Add("FILE", o.file, "JSON lines of {timestamp, input_length, output_length, hash_ids}")
        .Required();
    app.Add("--engine", engine_, "The engine to simulate: vllm or megatron")
        .Required()
        .OneOf({"vllm", "megatron"});
    // ValidateTraceOptions checks the ranges.
    const auto number = [&](const char* flag, auto& value, const char* what) {
      app.Add(flag, value, what).Type("N").ShowDefault();
    };
    number("--requests", o.requests, "Only the first N requests; 0 = all");
    number("--kv-tokens", o.kv_tokens, "Size of the KV pool in tokens");
    number("--block-tokens", o.block_tokens, "Tokens per KV block");
    number("--max-batched-tokens", o.max_batched_tokens, "Tokens per step, at most");
    number("--layers", o.layers, "MoE layers");
    number("--top-k", o.top_k, "Experts per token and layer");
    number("--experts", o.experts, "Experts per layer");
    number("--spec-tokens", o.spec_tokens, "Draft tokens per decode step");
    app.Flag("--async", o.async, "See results a step late");
    number("--preempt-rate", o.preempt_rate, "Probability per step that a request is preempted");
    number("--drop-rate", o.drop_rate, "Probability per step that its rows are dropped");
    app.Flag("--offload", o.offload, "Evicted blocks go to a host tier and come back");
    number("--seed", o.seed, "Seed of all random numbers");
    app.Add("--record", record_, "Record the flight, for `waymark check`").Type("FILE");
    app.Flag("--json", json_, "Print one JSON object");
    app.Footer(
        "Exits 0 if no row is wrong and every missing row is explained by the scenario, 1 if\n"
        "not, 2 if the file cannot be read or an option is impossible.");
  }

  ExitCode Run() override {
    options_.engine = engine_ == "vllm" ? sim::EngineKind::kVllm : sim::EngineKind::kMegatron;
    if (absl::Status status = sim::ValidateTraceOptions(options_); !status.ok()) {
      return Fail(name(), std::string(status.message()));
    }
    // Reads the trace before the recording is created, so that a bad trace leaves no recording.
    if (absl::Status status = sim::ReadTraceFile(options_.file, options_.requests).status();
        !status.ok()) {
      return Fail(name(), std::string(status.message()));
    }
    std::unique_ptr<FlightWriter> writer;
    if (!record_.empty()) {
      absl::StatusOr<std::unique_ptr<FlightWriter>> opened =
          FlightWriter::Open(record_, FlightInfo::Of(sim::TraceStoreOptions(options_)));
      if (!opened.ok()) return Fail(name(), std::string(opened.status().message()));
      writer = *std::move(opened);
      options_.flight = writer->sink();
    }
    Progress progress("requests");
    options_.progress = [&](const sim::TraceProgress& at) {
      progress.Show(static_cast<std::uint64_t>(at.requests_done),
                    static_cast<std::uint64_t>(at.requests_total),
                    Count(at.rows_checked) + " rows checked, " + Count(at.rows_wrong) + " wrong, " +
                        Count(at.steps) + " steps, " + FixedDigits(at.seconds, 0) + " s");
    };
    absl::StatusOr<sim::TraceResult> result = sim::RunTrace(options_);
    progress.Clear();
    if (!result.ok()) return Fail(name(), std::string(result.status().message()));
    if (writer != nullptr) {
      if (absl::Status status = writer->Close(); !status.ok()) {
        return Fail(name(), std::string(status.message()));
      }
    }
    if (json_) {
      std::printf("%s\n", ToJson(*result).dump(1).c_str());
    } else {
      Print(options_, *result);
    }
    return result->clean() ? kExitOk : kExitFoundWrong;
  }

 private:
  sim::TraceOptions options_;
  std::string engine_;
  std::string record_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeTraceCommand() {
  return std::make_unique<TraceCommand>();
}

}  // namespace waymark::cli
