#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "adapters/bench/budgets.h"
#include "adapters/bench/workload.h"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/json_table.h"
#include "blockstore/wire/set_code_tile.h"
#include "kernels/isa.h"

namespace waymark::cli {
namespace {

using bench::Budget;
using bench::BudgetResult;
using bench::Limit;

std::string LimitText(const Budget& budget) {
  constexpr const char* kUnits[] = {" us", " ms", "x", "x", " MB", "x"};  // by Limit
  char text[48];
  std::snprintf(text, sizeof text, "%s %g%s",
                budget.limit == Limit::kSpeed ? ">=" : "<=", budget.value,
                kUnits[static_cast<int>(budget.limit)]);
  return text;
}

std::string Micros(double micros) {
  return micros == 0 ? "" : FixedDigits(micros, micros < 10 ? 2 : micros < 100 ? 1 : 0);
}

void PrintTable(const std::vector<BudgetResult>& results) {
  const char* const line = "  %-18s  %-49s  %-10s  %8s  %8s  %-24s  %6s  %s\n";
  std::printf(line, "name", "what", "budget", "median", "decile", "baseline", "ratio", "met");
  for (const BudgetResult& result : results) {
    const Budget& budget = result.budget;
    const std::string median = result.bytes > 0
                                   ? FixedDigits(static_cast<double>(result.bytes) / 1e6, 2) + " MB"
                                   : Micros(result.median_us);
    const std::string baseline = std::string(budget.baseline) + " " + Micros(result.baseline_us);
    std::printf(line, std::string(budget.name).c_str(), std::string(budget.what).c_str(),
                LimitText(budget).c_str(), median.c_str(), Micros(result.decile_us).c_str(),
                baseline.c_str(),
                result.ratio > 0 ? (FixedDigits(result.ratio, 2) + "x").c_str() : "",
                result.met ? "met" : "NOT MET");
  }
  std::printf(
      "\n  In microseconds, unless said. Calls are timed one by one, in turns with the baseline.\n"
      "  Those of microseconds are judged by the median on the clock, those of milliseconds by "
      "the\n"
      "  lower decile of processor time.\n");
}

Json ToJson(const BudgetResult& result) {
  const Budget& budget = result.budget;
  return {{"name", budget.name},
          {"what", budget.what.substr(budget.what.find_first_not_of(' '))},
          {"budget", LimitText(budget)},
          {"judged_by", budget.slow ? "decile_us" : "median_us"},
          {"turns", result.turns},
          {"median_us", result.median_us},
          {"decile_us", result.decile_us},
          {"baseline", budget.baseline},
          {"baseline_us", result.baseline_us},
          {"bytes", result.bytes},
          {"ratio", result.ratio},
          {"met", result.met}};
}

// The machine that is measured, and what runs on it.
Json Machine() {
  std::string processor = "unknown";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos || line.rfind("model name", 0) != 0) continue;
    processor = line.substr(colon + 2);
    break;
  }
  double load = 0;
  (void)getloadavg(&load, 1);
#ifdef NDEBUG
  const bool asserts = false;
#else
  const bool asserts = true;  // slower than what is released
#endif
  return {{"processor", processor},
          {"cores", std::thread::hardware_concurrency()},
          {"load", load},
          {"kernels_isa", kernels::IsaName(kernels::SupportedIsas().back())},
          {"set_code_isa", internal::SetCodeBackends().back().name},
          {"asserts", asserts}};
}

class BenchCommand final : public Command {
 public:
  BenchCommand()
      : Command("bench", "Measure what Waymark costs on this machine, against its budgets") {}
  void AddOptions(CLI::App& app) override {
    options_.store_rows = bench::kStoreRows;
    app.add_option("--only", options_.only, "Only the budgets whose name begins with NAME")
        ->type_name("NAME");
    app.add_option("--seconds", options_.seconds,
                   "Seconds of measuring, in equal shares; filling stores comes on top")
        ->type_name("N")
        ->check(CLI::Range(0.001, 3600.0))
        ->check(IsNumber)
        ->capture_default_str();
    app.add_option("--store-rows", options_.store_rows,
                   "Rows of each store, 464 bytes each; a multiple of 8192")
        ->type_name("N")
        ->check(CLI::Range(std::int64_t{1} << 16, std::int64_t{1} << 27))
        ->capture_default_str();
    app.add_flag("--json", json_, "Print one JSON object");
    app.footer(
        "58 layers, top 8 of 256 experts, 16 tokens per page unless said. Takes about 1 GB of\n"
        "memory. Exits 0 whether the budgets are met or not, 2 if an option is impossible or\n"
        "memory is short.");
  }
  ExitCode Run() override {
    if (options_.store_rows % bench::kPrefillRows != 0) {
      return Fail(name(), "--store-rows is " + std::to_string(options_.store_rows) +
                              "; it must be a multiple of " + std::to_string(bench::kPrefillRows));
    }
    std::string names;
    bool found = false;
    for (const Budget& budget : bench::Budgets()) {
      names += (names.empty() ? "" : ", ") + std::string(budget.name);
      found = found || budget.name.starts_with(options_.only);
    }
    if (!found) {
      return Fail(name(), "--only is '" + options_.only + "'; the budgets are " + names);
    }
    const Json machine = Machine();
    Progress progress("budgets measured:");
    const std::vector<BudgetResult> results = bench::MeasureBudgets(
        options_, [&](std::size_t done, std::size_t all, std::string_view next) {
          progress.Show(done, all, std::string(next));
        });
    progress.Clear();
    if (json_) {
      Json rows = Json::array();
      for (const BudgetResult& result : results)
        rows.push_back(ToJson(result));
      PrintJson({{"machine", machine}, {"store_rows", options_.store_rows}, {"budgets", rows}});
      return kExitOk;
    }
    std::printf("%s\n", JsonTable(machine).c_str());
    PrintTable(results);
    return kExitOk;
  }

 private:
  bench::BudgetOptions options_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() {
  return std::make_unique<BenchCommand>();
}

}  // namespace waymark::cli
