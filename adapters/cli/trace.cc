#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/json_table.h"
#include "adapters/simulators/engine.h"
#include "adapters/simulators/trace.h"
#include "blockstore/flight/writer.h"

namespace waymark::cli {
namespace {

Json ToJson(const sim::Engine& engine, double seconds) {
  const sim::CheckCounts& checks = engine.checks();
  const sim::EngineCounts& counts = engine.counts();
  const Stats stats = engine.StoreStats(0);
  return Json{{"requests_finished", checks.requests},
              {"requests_skipped", counts.requests_skipped},  // they can never fit the pool
              {"rows_checked", checks.rows},
              {"rows_wrong", checks.wrong},
              {"rows_unexplained", checks.unexplained},
              {"rows_missing", MissingByReason(checks.missing)},
              {"rows_kept", checks.kept},
              {"rows_by_key", checks.by_key},
              {"prefix_hit_tokens", counts.prefix_hit_tokens},
              {"computed_tokens", counts.computed_tokens},
              {"preemptions", counts.preemptions},
              {"evictions", counts.evictions},
              {"page_evictions", stats.evictions},
              {"steps", counts.steps},
              {"steps_dropped", counts.steps_dropped},
              {"store_bytes_peak", stats.bytes_touched_peak},
              {"store_bytes_reserved", stats.bytes},
              {"seconds", seconds},
              {"findings", checks.findings}};
}

void Print(const Json& json, bool clean) {
  std::printf("%s\n", JsonTable(json).c_str());
  for (const std::string finding : json["findings"])
    std::printf("%s\n", finding.c_str());
  if (json["rows_checked"] == 0) return;
  std::printf("%s\n", clean ? "No row is wrong, and every missing row is explained."
                            : "NOT RIGHT: rows are wrong, or missing without explanation.");
}

class TraceCommand final : public Command {
 public:
  TraceCommand()
      : Command("trace",
                "Schedule a real block trace through an engine simulator, and check every row") {}

  void AddOptions(CLI::App& app) override {
    engine_.layers = 58;
    engine_.top_k = 8;
    engine_.experts = 256;
    engine_.block_tokens = 16;
    engine_.max_batched_tokens = 8192;
    engine_.seed = 1;
    app.add_option("FILE", file_,
                   "JSON lines of {timestamp, input_length, output_length, hash_ids}")
        ->required();
    app.add_option("--engine", kind_, "The engine to simulate: vllm or megatron")
        ->required()
        ->check(CLI::IsMember({"vllm", "megatron"}));
    const auto number = [&](const char* flag, auto& value, const char* what, std::int64_t least,
                            std::int64_t most) {
      app.add_option(flag, value, what)
          ->type_name("N")
          ->capture_default_str()
          ->check(CLI::Range(least, most));
    };
    const auto chance = [&](const char* flag, double& value, const char* what) {
      app.add_option(flag, value, what)
          ->type_name("P")
          ->capture_default_str()
          ->check(CLI::Range(0.0, 1.0))
          ->check(IsNumber);
    };
    number("--requests", requests_, "Only the first N requests; 0 = all", 0, 1'000'000'000'000);
    number("--kv-tokens", kv_tokens_, "Size of the KV pool in tokens", 1, 1 << 30);
    number("--block-tokens", engine_.block_tokens, "Tokens per KV block", 1, 4096);
    number("--max-batched-tokens", engine_.max_batched_tokens, "Tokens per step, at most", 1,
           1 << 20);
    number("--layers", engine_.layers, "MoE layers", 1, 1024);
    number("--top-k", engine_.top_k, "Experts per token and layer", 1, 64);
    number("--experts", engine_.experts, "Experts per layer", 1, 65535);
    number("--spec-tokens", engine_.spec_tokens, "Draft tokens per decode step", 0, 16);
    app.add_flag("--async", async_, "See results a step late");
    chance("--preempt-rate", engine_.features.preempt_one,
           "Probability per step that a request is preempted");
    chance("--drop-rate", engine_.features.drop_all,
           "Probability per step that its rows are dropped");
    app.add_flag("--offload", offload_, "Evicted blocks go to a host tier and come back");
    app.add_option("--seed", engine_.seed, "Seed of all random numbers")
        ->type_name("N")
        ->capture_default_str();
    app.add_option("--record", record_, "Record what the store is told, for `waymark check`")
        ->type_name("FILE");
    app.add_flag("--json", json_, "Print one JSON object");
    app.footer(
        "Requests queue in the order of the file, timestamps are ignored, at most 256 run at "
        "once.\n"
        "Every request that finishes is read from the store and compared with an oracle row by row."
        "\nExits 0 if no row is wrong and every missing row is explained by the scenario, 1 if\n"
        "not, 2 if the file cannot be read, an option is impossible, or no row was checked.");
  }

  ExitCode Run() override {
    if (const std::string wrong = CompleteOptions(); !wrong.empty()) return Fail(name(), wrong);
    if (SameFile(record_, file_)) {
      return Fail(name(), "--record must be another file than FILE; both are '" + file_ + "'");
    }
    // Before the recording is created, so that a bad trace leaves none.
    absl::StatusOr<std::vector<sim::TraceRequest>> requests = sim::ReadTraceFile(file_, requests_);
    if (!requests.ok()) return Fail(name(), std::string(requests.status().message()));
    std::unique_ptr<FlightWriter> writer;
    if (!record_.empty()) {
      absl::StatusOr<std::unique_ptr<FlightWriter>> opened =
          FlightWriter::Open(record_, FlightInfo::Of(sim::StoreOptionsOf(engine_, 0)));
      if (!opened.ok()) return Fail(name(), std::string(opened.status().message()));
      writer = *std::move(opened);
      engine_.flights = {writer->sink()};
    }
    const auto start = std::chrono::steady_clock::now();
    const auto total = requests->size();
    absl::StatusOr<std::unique_ptr<sim::Engine>> engine =
        sim::Engine::Create(engine_, sim::ArrivalsOf(*std::move(requests)));
    if (!engine.ok()) return Fail(name(), std::string(engine.status().message()));
    RunAll(**engine, total);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const absl::Status closed = writer != nullptr ? writer->Close() : absl::OkStatus();
    if (!closed.ok()) return Fail(name(), std::string(closed.message()));
    Json json = ToJson(**engine, took.count());
    std::error_code unknown;  // of a pipe or a device
    const std::uintmax_t recorded = std::filesystem::file_size(record_, unknown);
    if (!unknown) json["recording_bytes"] = recorded;
    const bool clean = json["rows_wrong"] == 0 && json["rows_unexplained"] == 0;
    json_ ? PrintJson(json) : Print(json, clean);
    if ((*engine)->checks().rows == 0) {
      return Fail(name(), "no row was checked: " + Count(json["requests_finished"]) +
                              " requests finished, and " + Count(json["requests_skipped"]) +
                              " never fit into --kv-tokens " + std::to_string(kv_tokens_));
    }
    return clean ? kExitOk : kExitFoundWrong;
  }

 private:
  // Sets what the options mean for the engine. Returns what is wrong with them together.
  std::string CompleteOptions() {
    if (kv_tokens_ < 2 * engine_.block_tokens) return "--kv-tokens must be at least two blocks";
    if (engine_.top_k > engine_.experts) return "--top-k must be at most --experts";
    if (engine_.max_batched_tokens <= engine_.spec_tokens) {
      return "--max-batched-tokens must be more than --spec-tokens";
    }
    engine_.megatron = kind_ == "megatron";
    // At most 64 rows per page, because the rows that a request leaves unfilled are wasted.
    engine_.page_tokens = std::min(engine_.block_tokens, 64);
    while (engine_.block_tokens % engine_.page_tokens != 0)
      --engine_.page_tokens;
    if (engine_.page_tokens < 16) engine_.page_tokens = engine_.block_tokens;
    engine_.blocks = static_cast<std::int32_t>(kv_tokens_ / engine_.block_tokens);
    engine_.max_running = 256;
    engine_.max_waiting = 16;
    engine_.host_blocks = 0;
    if (engine_.megatron) engine_.features.full_hit = 1;
    if (offload_) {
      engine_.features.swap = .5;
      engine_.features.tier = .5;
      engine_.host_blocks = engine_.blocks;
      engine_.tier_keys = 2 * engine_.blocks;
    }
    engine_.timing.land_at_once = true;
    engine_.features.late = async_;
    engine_.timing.behind = async_;
    engine_.max_steps_in_flight = 16;
    // With fewer layers the agreement of two rows is too random for the audit.
    engine_.audit = engine_.layers >= 4;
    return "";
  }

  static void RunAll(sim::Engine& engine, std::size_t total) {
    Progress progress("requests");
    while (!engine.Idle()) {
      engine.Step();
      const sim::CheckCounts& checks = engine.checks();
      progress.Show(static_cast<std::uint64_t>(checks.requests + engine.counts().requests_skipped),
                    total, Count(checks.rows) + " rows checked, " + Count(checks.wrong) + " wrong");
    }
    engine.Finish();
  }

  sim::EngineOptions engine_;
  std::string file_;
  std::string kind_;
  std::int64_t requests_ = 0;
  std::int64_t kv_tokens_ = 1048576;
  bool async_ = false;
  bool offload_ = false;
  std::string record_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeTraceCommand() {
  return std::make_unique<TraceCommand>();
}

}  // namespace waymark::cli
