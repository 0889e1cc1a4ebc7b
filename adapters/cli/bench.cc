#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "adapters/bench/workload.h"
#include "adapters/cli/budgets.h"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/machine.h"
#include "nlohmann/json.hpp"

#ifndef WAYMARK_VERSION
#define WAYMARK_VERSION "unknown"
#endif

namespace waymark::cli {
namespace {

using Json = nlohmann::ordered_json;

// ---- one value of the table

std::string Figures(double value) {
  return FixedDigits(value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

// In the unit that the row is judged in: microseconds by the median, milliseconds by the lower
// decile.
std::string Duration(const Budget& budget, double micros) {
  return budget.judge == Judge::kMedian ? Figures(micros) + " us" : Figures(micros / 1000) + " ms";
}

std::string LimitText(const Budget& budget) {
  char value[32];
  std::snprintf(value, sizeof value, "%g", budget.value);
  switch (budget.limit) {
    case Limit::kMicros:
      return std::string("<= ") + value + " us";
    case Limit::kMillis:
      return std::string("<= ") + value + " ms";
    case Limit::kTimes:
    case Limit::kTimesBytes:
      return std::string("<= ") + value + "x";
    case Limit::kSpeed:
      return std::string(">= ") + value + "x";
    case Limit::kMegabytes:
      return std::string("<= ") + value + " MB";
    case Limit::kOwed:
      break;
  }
  return std::string(budget.owed);
}

std::string Verdict(const BudgetResult& result) {
  if (!result.met) return "owed: needs a GPU";
  return *result.met ? "met" : "NOT MET";
}

// ---- the table

constexpr std::size_t kColumns = 8;
using Cells = std::array<std::string, kColumns>;

Cells CellsOf(const BudgetResult& result) {
  const Budget& budget = result.budget;
  Cells cells{std::string(budget.name), std::string(budget.what), LimitText(budget), "", "", "", "",
              Verdict(result)};
  if (result.time) {
    cells[3] = Duration(budget, result.time->median);
    cells[4] = Duration(budget, result.time->lower_decile);
  } else if (result.bytes) {
    cells[3] = FixedDigits(static_cast<double>(*result.bytes) / 1e6, 2) + " MB";
  }
  if (result.baseline) {
    const Quantiles& baseline = *result.baseline;
    cells[5] =
        std::string(budget.baseline) + " " +
        Duration(budget, budget.judge == Judge::kMedian ? baseline.median : baseline.lower_decile);
  } else {
    cells[5] = budget.baseline;
  }
  if (result.ratio) cells[6] = FixedDigits(*result.ratio, 2) + "x";
  return cells;
}

void PrintTable(const std::vector<BudgetResult>& results) {
  std::vector<Cells> lines = {
      {"name", "what", "budget", "median", "decile", "baseline", "ratio", "met"}};
  for (const BudgetResult& result : results)
    lines.push_back(CellsOf(result));
  std::array<std::size_t, kColumns> widths{};
  for (const Cells& cells : lines) {
    for (std::size_t i = 0; i < kColumns; ++i)
      widths[i] = std::max(widths[i], cells[i].size());
  }
  for (const Cells& cells : lines) {
    std::string line = " ";
    for (std::size_t i = 0; i < kColumns; ++i) {
      const std::string space(widths[i] - cells[i].size(), ' ');
      // Numbers to the right.
      const bool number = i == 3 || i == 4 || i == 6;
      line += " " + (number ? space + cells[i] : cells[i] + space) + " ";
    }
    std::printf("%s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str());
  }
}

void PrintMachine(const Machine& machine) {
  Table table;
  table.Add("waymark " WAYMARK_VERSION, machine.asserts ? "asserts on: slower than a release" : "");
  table.Add("processor", machine.cpu);
  table.Add("cores, load", std::to_string(machine.cores) + ", " + FixedDigits(machine.load, 1));
  table.Add("L2 per core, L3", HumanBytes(machine.l2_bytes) + ", " + HumanBytes(machine.l3_bytes));
  table.Add("memory", HumanBytes(machine.memory_bytes));
  table.Add("instruction sets in use",
            "kernels " + machine.kernels_isa + ", set code " + machine.set_code_isa);
  table.Add("kernel", machine.kernel);
  table.Add("CUDA", machine.cuda);
  std::printf("%s\n", table.ToString().c_str());
}

// ---- JSON

Json ToJson(const std::optional<Quantiles>& times) {
  if (!times) return nullptr;
  return {{"median_us", times->median}, {"lower_decile_us", times->lower_decile}};
}

template <class T>
Json ToJson(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json ToJson(const BudgetResult& result) {
  const Budget& budget = result.budget;
  return {{"name", budget.name},
          {"what", budget.what.substr(budget.what.find_first_not_of(' '))},
          {"budget", LimitText(budget)},
          {"judged_by", budget.judge == Judge::kMedian ? "median" : "lower_decile"},
          {"turns", result.turns},
          {"time", ToJson(result.time)},
          {"bytes", ToJson(result.bytes)},
          {"baseline", budget.baseline},
          {"baseline_time", ToJson(result.baseline)},
          {"ratio", ToJson(result.ratio)},
          {"met", ToJson(result.met)},
          {"verdict", Verdict(result)}};
}

Json ToJson(const Machine& machine) {
  return {{"processor", machine.cpu},
          {"cores", machine.cores},
          {"load", machine.load},
          {"memory_bytes", machine.memory_bytes},
          {"l2_bytes", machine.l2_bytes},
          {"l3_bytes", machine.l3_bytes},
          {"kernels_isa", machine.kernels_isa},
          {"set_code_isa", machine.set_code_isa},
          {"kernel", machine.kernel},
          {"cuda_built", machine.cuda_built},
          {"cuda", machine.cuda},
          {"asserts", machine.asserts}};
}

// ---- the command

class BenchCommand final : public Command {
 public:
  std::string name() const override { return "bench"; }
  std::string summary() const override {
    return "Measure what Waymark costs on this machine, against its budgets";
  }
  void AddOptions(Options& app) override {
    options_.store_rows = bench::kStoreRows;
    app.Add("--only", options_.only, "Only the budgets whose name begins with NAME").Type("NAME");
    app.Add("--seconds", options_.seconds,
            "Seconds of measuring, in equal shares; filling stores comes on top")
        .Type("N")
        .RealRange(0.001, 3600.0)
        .ShowDefault();
    app.Add("--store-rows", options_.store_rows,
            "Rows of each store, 464 bytes each; a multiple of 8192")
        .Type("N")
        .Range(std::int64_t{1} << 16, std::int64_t{1} << 27)
        .ShowDefault();
    app.Flag("--json", json_, "Print one JSON object");
    app.Footer(
        "58 layers, top 8 of 256 experts, 16 tokens per page unless said. Takes about 1 GB of\n"
        "memory. Exits 0 whether the budgets are met or not, 2 if an option is impossible or\n"
        "memory is short.");
  }
  ExitCode Run() override;

 private:
  BudgetOptions options_;
  bool json_ = false;
};

ExitCode BenchCommand::Run() {
  if (options_.store_rows % bench::kPrefillRows != 0) {
    return Fail(name(), "--store-rows is " + std::to_string(options_.store_rows) +
                            "; it must be a multiple of " + std::to_string(bench::kPrefillRows));
  }
  std::string names;
  bool found = false;
  for (const Budget& budget : Budgets()) {
    names += (names.empty() ? "" : ", ") + std::string(budget.name);
    found = found || budget.name.substr(0, options_.only.size()) == options_.only;
  }
  if (!found) {
    return Fail(name(), "--only is '" + options_.only + "'; the budgets are " + names);
  }

  const double begin = bench::Now(bench::Clock::kWall);
  const Machine machine = ThisMachine();
  Progress progress("budgets measured:");
  const std::vector<BudgetResult> results =
      MeasureBudgets(options_, [&](std::size_t done, std::size_t all, std::string_view next) {
        progress.Show(done, all, std::string(next));
      });
  progress.Clear();
  const double seconds = (bench::Now(bench::Clock::kWall) - begin) / 1e9;

  if (json_) {
    Json rows = Json::array();
    for (const BudgetResult& result : results)
      rows.push_back(ToJson(result));
    const Json report = {{"version", WAYMARK_VERSION},
                         {"machine", ToJson(machine)},
                         {"store_rows", options_.store_rows},
                         {"seconds", seconds},
                         {"budgets", rows}};
    std::printf("%s\n", report.dump(2).c_str());
    return kExitOk;
  }
  PrintMachine(machine);
  PrintTable(results);
  std::printf(
      "\n  Calls are timed one by one, in turns with the baseline. Rows in us are judged by the\n"
      "  median on the clock, rows in ms by the lower decile of processor time. Took %s s.\n",
      FixedDigits(seconds, 0).c_str());
  return kExitOk;
}

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() {
  return std::make_unique<BenchCommand>();
}

}  // namespace waymark::cli
