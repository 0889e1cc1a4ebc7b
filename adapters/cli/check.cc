#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

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
  if (!info.valid()) return Json{{"missing", std::string(ReasonName(info.reason))}};
  return Json{{"step", info.step},
              {"version", info.version},
              {"provenance", std::string(ProvenanceName(info.provenance))}};
}

Json ToJson(const FlightReport& verdict) {
  Json missed_events = Json::array();
  for (const MissedEvent& found : verdict.missed_events) {
    missed_events.push_back({{"block", found.block},
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
              {"rows_right", verdict.rows_right},
              {"rows_missing", MissingByReason(verdict.rows_missing)},
              {"rows_excused", verdict.rows_excused},
              {"rows_differing", verdict.rows_differing},
              {"rows_not_checked", verdict.rows_not_checked},
              {"audited_rows", verdict.audited_rows},
              {"pages_voided", verdict.pages_voided},
              {"missed_events", std::move(missed_events)},
              {"differences", std::move(differences)}};
}

void Print(const FlightReport& verdict) {
  std::printf("%s\n", JsonTable(ToJson(verdict)).c_str());
  if (verdict.truncated) {
    std::printf(
        "The flight is cut off: it ends without its closing record. The rest was "
        "checked.\n");
  }
  if (verdict.incomplete) {
    std::printf("The recorder stopped before the engine did. What it recorded was checked.\n");
  }
  const auto show = [](const char* what, const auto& found, std::uint64_t all, const char* of_all) {
    for (std::size_t i = 0; i < std::min(found.size(), kShownLines); ++i)
      std::printf("%s: %s\n", what, found[i].ToString().c_str());
    if (all > kShownLines) std::printf("  ... %s %s in all\n", WithCommas(all).c_str(), of_all);
  };
  show("differs", verdict.differences, verdict.rows_differing, "rows differ");
  show("missed event", verdict.missed_events, verdict.missed_events.size(), "missed events");
  if (verdict.clean()) {
    std::printf(verdict.reads > 0
                    ? "Every read was right.\n"
                    : "The flight has no reads, and its writes do not contradict each other.\n");
  } else if (verdict.has_missed_event()) {
    std::printf("INDICTED: the engine missed an event, since later writes contradict kept rows.\n");
  } else {
    std::printf("NOT RIGHT: rows that were read differ from what the events make them.\n");
  }
}

class CheckCommand final : public Command {
 public:
  CheckCommand()
      : Command("check", "Replay a recorded flight through a fresh store: was every read right?") {}

  void AddOptions(Options& app) override {
    app.Add("FILE", file_, "A flight: `waymark trace --record FILE`, or a recorder's dump")
        .Required();
    app.Add("--max-memory-mb", max_memory_mb_, "The most memory for the replaying store")
        .Type("MB")
        .Range(1, 1 << 24)
        .ShowDefault();
    app.Flag("--json", json_, "Print one JSON object");
    app.Footer(
        "Exits 0 if every read was right and no missed event is found, 1 if not, 2 if the file\n"
        "is not a flight, or is damaged.");
  }

  ExitCode Run() override {
    absl::StatusOr<FlightReader> reader = FlightReader::Open(file_);
    if (!reader.ok()) return Broken(reader.status());
    Progress progress("checking");
    CheckOptions options;
    options.max_bytes = static_cast<std::uint64_t>(max_memory_mb_) << 20;
    options.progress = [&](std::uint64_t records) { progress.Show(records, 0, "records"); };
    absl::StatusOr<FlightReport> verdict = CheckFlight(*reader, options);
    progress.Clear();
    if (!verdict.ok()) return Broken(verdict.status());
    if (json_) {
      std::printf("%s\n", ToJson(*verdict).dump(1).c_str());
    } else {
      Print(*verdict);
    }
    return verdict->clean() ? kExitOk : kExitFoundWrong;
  }

 private:
  ExitCode Broken(const absl::Status& status) const {
    const std::string message(status.message());
    // The errors of FlightReader::Open name the file already.
    const bool named = message.find(file_) != std::string::npos;
    return Fail(name(), named ? message : "'" + file_ + "': " + message);
  }

  std::string file_;
  int max_memory_mb_ = 8192;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeCheckCommand() {
  return std::make_unique<CheckCommand>();
}

}  // namespace waymark::cli
