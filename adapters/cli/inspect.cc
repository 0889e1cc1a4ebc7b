#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/json_table.h"
#include "adapters/cli/routing_input.h"

namespace waymark::cli {
namespace {

constexpr std::size_t kShownRuns = 12;

// The load of each layer, over the valid rows; empty if no row is valid. The share of an expert is
// the number of rows that chose it over the number of all choices, rows * K; of several experts
// that are used equally often the lowest is named. `entropy`: of the shares, divided by log(E), the
// entropy of equal shares: in [0, 1]; 1 if there is one expert. `unused_experts`: those that no row
// chose.
Json LoadOf(const Rows& rows) {
  const RoutingShape& shape = rows.shape;
  const std::size_t experts = static_cast<std::size_t>(shape.num_experts);
  const std::size_t layers = static_cast<std::size_t>(shape.num_layers);
  const std::size_t top_k = static_cast<std::size_t>(shape.top_k);
  std::vector<std::uint64_t> counts(layers * experts, 0);
  std::uint64_t valid = 0;
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    if (!rows.infos[static_cast<std::size_t>(i)].valid()) continue;
    ++valid;
    const std::uint8_t* row = rows.row(i).data();
    for (std::size_t n = 0; n < layers * top_k; ++n)
      ++counts[n / top_k * experts + shape.id_at(row, n)];
  }
  Json loads = Json::array();
  const double choices = static_cast<double>(valid) * static_cast<double>(top_k);
  for (std::size_t layer = 0; valid > 0 && layer < layers; ++layer) {
    const std::span<const std::uint64_t> of = std::span(counts).subspan(layer * experts, experts);
    double entropy = 0;
    for (const std::uint64_t count : of) {
      if (count == 0) continue;
      const double share = static_cast<double>(count) / choices;
      entropy -= share * std::log(share);
    }
    const auto expert = [&](auto at) {
      return Json{{"expert", at - of.begin()}, {"share", static_cast<double>(*at) / choices}};
    };
    loads.push_back(
        {{"layer", shape.layer_id(static_cast<std::int32_t>(layer))},
         {"entropy", experts == 1 ? 1 : entropy / std::log(static_cast<double>(experts))},
         {"most_used", expert(std::max_element(of.begin(), of.end()))},
         {"least_used", expert(std::min_element(of.begin(), of.end()))},
         {"unused_experts", std::count(of.begin(), of.end(), 0u)}});
  }
  return loads;
}

Json ToJson(const std::string& path, const RoutingFile& file) {
  const Rows& rows = file.rows;
  Json coverage = Json::array();
  std::int64_t valid = 0;
  for (const CoverageRun& run : rows.Coverage()) {
    Json entry = {{"begin", run.begin}, {"end", run.end}};
    if (run.reason == Reason::kNone) {
      valid += run.end - run.begin;
      if (!file.format.has_value()) {  // an array has neither
        entry["version"] = run.version == kUnknownVersion ? Json("unknown") : Json(run.version);
        entry["provenance"] = std::string(ProvenanceName(run.provenance));
      }
    } else {
      entry["missing"] = WhyMissing(run.reason, run.cause);
    }
    coverage.push_back(std::move(entry));
  }
  return Json{{"file", path},
              {"format", file.name},
              {"what", file.what},
              {"first", rows.first},
              {"rows", rows.size()},
              {"valid", valid},
              {"layers", rows.shape.num_layers},
              {"top_k", rows.shape.top_k},
              {"experts", rows.shape.num_experts},
              {"experts_known", file.experts_known},
              {"notes", file.notes},
              {"coverage", std::move(coverage)},
              {"load", LoadOf(rows)}};
}

void Print(const Json& json) {
  std::printf("%s\n", JsonTable(json).c_str());
  for (const Json& note : json["notes"])
    std::printf("  note: %s\n", std::string(note).c_str());
  std::printf("\n  Coverage\n");
  std::size_t shown = 0;
  for (const Json& run : json["coverage"]) {
    if (shown++ == kShownRuns) break;
    std::string what =
        run.contains("missing") ? "missing: " + std::string(run["missing"]) : "valid";
    if (run.contains("version")) {
      const bool known = run["version"].is_number();
      what += ", version " + (known ? run["version"].dump() : "unknown") + ", provenance " +
              std::string(run["provenance"]);
    }
    std::printf("  rows %s to %lld: %s\n", run["begin"].dump().c_str(),
                static_cast<long long>(run["end"]) - 1, what.c_str());
  }
  if (json["coverage"].size() > kShownRuns) {
    std::printf("  ... %zu runs in all\n", json["coverage"].size());
  }
  if (json["load"].empty()) return;
  std::printf("\n  Load of the experts (equal shares: %s)\n",
              Percent(1.0 / static_cast<double>(json["experts"])).c_str());
  std::printf("  layer  entropy      most used           least used     unused\n");
  for (const Json& load : json["load"]) {
    std::printf("  %5s  %7s  %6s  %8s     %6s  %8s  %9s\n", load["layer"].dump().c_str(),
                FixedDigits(load["entropy"], 3).c_str(), load["most_used"]["expert"].dump().c_str(),
                Percent(double{load["most_used"]["share"]}).c_str(),
                load["least_used"]["expert"].dump().c_str(),
                Percent(double{load["least_used"]["share"]}).c_str(),
                load["unused_experts"].dump().c_str());
  }
}

class InspectCommand final : public Command {
 public:
  InspectCommand()
      : Command("inspect",
                "Describe a file of routing: format, shape, coverage, load of the experts") {}
  void AddOptions(CLI::App& app) override {
    app.add_option("FILE", file_, "A Waymark document, or routing of another format")->required();
    AddInputOptions(app, "--format", input_);
    app.add_flag("--json", json_, "Print one JSON object");
    app.footer("Exits 0, or 2 if the file cannot be used.");
  }
  ExitCode Run() override {
    const absl::StatusOr<RoutingFile> file =
        LoadRouting(file_, input_, {.assume_moe_columns = true, .assume_experts = true});
    if (!file.ok()) return Fail(name(), std::string(file.status().message()));
    const Json json = ToJson(file_, *file);
    json_ ? PrintJson(json) : Print(json);
    return kExitOk;
  }

 private:
  std::string file_;
  InputOptions input_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeInspectCommand() {
  return std::make_unique<InspectCommand>();
}

}  // namespace waymark::cli
