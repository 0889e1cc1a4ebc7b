#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/json_table.h"
#include "blockstore/flight/check.h"
#include "blockstore/flight/reader.h"

namespace waymark::cli {
namespace {

constexpr std::size_t kShownLines = 10;

Json ToJson(const RowInfo& info) {
  if (!info.valid()) return Json{{"missing", WhyMissing(info.reason, info.cause)}};
  return Json{{"step", info.step},
              {"version", info.version},
              {"provenance", std::string(ProvenanceName(info.provenance))}};
}

Json ToJson(const FlightReport& verdict) {
  Json findings = Json::array();
  for (const MissedEvent& found : verdict.missed_events) {
    findings.push_back({{"block", found.block},
                        {"step", found.step},
                        {"after_step", found.after},
                        {"event", found.event},
                        {"rows", found.rows},
                        {"agreement", found.agreement}});
  }
  Json differences = Json::array();
  for (const ReadDifference& difference : verdict.differences) {
    differences.push_back({{"read", difference.read_id},
                           {"row", difference.row},
                           {"block", difference.block},
                           {"other_route", difference.other_route},
                           {"recorded", ToJson(difference.recorded)},
                           {"replayed", ToJson(difference.replayed)}});
  }
  return Json{{"right", verdict.clean()},
              {"records", verdict.records},
              {"steps", verdict.steps},
              {"first_step", verdict.first_step},
              {"last_step", verdict.last_step},
              {"events", verdict.events},
              {"from_checkpoint", verdict.from_checkpoint},
              {"truncated", verdict.truncated},
              {"incomplete", verdict.incomplete},
              {"reads", verdict.reads},
              {"reads_differing", verdict.reads_differing},
              {"rows_read", verdict.rows_read},
              {"rows_valid_as_recorded", verdict.rows_valid()},
              {"rows_missing_as_recorded", MissingByReason(verdict.rows_missing)},
              {"rows_excused", verdict.rows_excused},
              {"rows_differing", verdict.rows_differing},
              {"rows_not_checked", verdict.rows_not_checked},
              {"audited_rows", verdict.audited_rows},
              {"pages_voided", verdict.pages_voided},
              {"findings", std::move(findings)},
              {"differences", std::move(differences)}};
}

void Print(const FlightReport& verdict) {
  std::printf("%s\n", JsonTable(ToJson(verdict)).c_str());
  if (verdict.incomplete) {
    std::printf("The recorder stopped before the engine did. What it recorded was checked.\n");
  }
  const auto show = [](const char* what, const auto& found, std::uint64_t all, const char* of_all) {
    for (std::size_t i = 0; i < std::min(found.size(), kShownLines); ++i)
      std::printf("%s: %s\n", what, found[i].ToString().c_str());
    if (all > kShownLines) std::printf("  ... %s %s in all\n", WithCommas(all).c_str(), of_all);
  };
  show("differs", verdict.differences, verdict.rows_differing, "rows differ");
  show("finding", verdict.missed_events, verdict.missed_events.size(), "findings");
  if (verdict.has_missed_event()) {
    std::printf(
        "NOT RIGHT: writes contradict kept rows. The engine missed an event, used a wrong key, or\n"
        "gave rows in wrong slots or in another order than the batch.\n");
  } else if (!verdict.reads_right()) {
    std::printf("NOT RIGHT: the store gave rows that differ from what the events make them.\n");
  } else if (verdict.checked()) {
    std::printf(
        "%s This does not prove\n"
        "the integration: wrong slots of rows that no seal protects, and a snapshot after the\n"
        "release, look right here. To prove it, compare requests with a recomputation.\n",
        verdict.reads > 0 ? "The store is right: each read gave what was recorded."
                          : "There are no reads; the writes do not contradict each other.");
  }
}

class CheckCommand final : public Command {
 public:
  CheckCommand()
      : Command("check",
                "Replay a recording through a new store: did each read give what was recorded?") {}

  void AddOptions(CLI::App& app) override {
    app.add_option("FILE", file_,
                   "A recording: of `waymark trace --record FILE`, or a recorder's dump")
        ->required();
    app.add_option("--max-memory-mb", max_memory_mb_, "The most memory for the replaying store")
        ->type_name("MB")
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str();
    app.add_flag("--json", json_, "Print one JSON object");
    app.footer(
        "Proves the store: that each read gave what was recorded. Does not prove the integration.\n"
        "Exits 0 if each read did and no write contradicts kept rows, 1 if not, 2 if the file is "
        "no\n"
        "recording, is damaged or cut off, or has nothing to check.");
  }

  ExitCode Run() override {
    absl::StatusOr<FlightReader> reader = FlightReader::Open(file_);
    if (!reader.ok()) return Fail(name(), std::string(reader.status().message()));
    Progress progress("checking");
    CheckOptions options;
    options.max_bytes = static_cast<std::uint64_t>(max_memory_mb_) << 20;
    options.progress = [&](std::uint64_t records) { progress.Show(records, 0, "records"); };
    absl::StatusOr<FlightReport> verdict = CheckFlight(*reader, options);
    progress.Clear();
    const std::string file = "'" + file_ + "': ";
    if (!verdict.ok()) return Fail(name(), file + std::string(verdict.status().message()));
    json_ ? PrintJson(ToJson(*verdict)) : Print(*verdict);
    if (!verdict->clean()) return kExitFoundWrong;
    if (verdict->truncated) {
      return Fail(name(), file + "it is cut off, without its closing record; the rest was checked");
    }
    if (verdict->checked()) return kExitOk;
    return Fail(name(),
                file + "nothing was checked: no valid row was read, and none written twice");
  }

 private:
  std::string file_;
  int max_memory_mb_ = 8192;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeCheckCommand() {
  return std::make_unique<CheckCommand>();
}

}  // namespace waymark::cli
