#include "adapters/simulators/removals.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/flight/lives.h"
#include "blockstore/flight/replay.h"
#include "blockstore/store/agreement.h"

namespace waymark::sim {
namespace {

using flight::BlockLives;
using flight::FlightReplay;
using flight::ReplayedRead;
using flight::StepWindow;

// A whole flight in memory, and the positions of its Binds.
struct LoadedFlight {
  struct BindAt {
    std::size_t record = 0;
    std::size_t event = 0;
    std::uint64_t step = 0;  // the step that is begun next
  };
  FlightInfo info;
  std::vector<FlightRecord> records;
  std::vector<BindAt> binds;
};

// The result of one replay: the rows in the order of the reads, which of them are valid, and the
// findings of the audit.
struct Outcome {
  std::vector<std::uint8_t> rows;
  std::vector<bool> there;
  struct Finding {
    AuditFinding finding;
    StepWindow window;
  };
  std::vector<Finding> findings;
};

absl::StatusOr<LoadedFlight> LoadFlight(FlightReader& reader) {
  if (absl::Status status = reader.Rewind(); !status.ok()) return status;
  LoadedFlight flight;
  std::size_t before = 0;  // Binds before the last begin
  std::uint64_t last = 0;
  flight.info = reader.info();
  for (;;) {
    FlightRecord record;
    absl::StatusOr<bool> more = reader.Next(record);
    if (!more.ok()) return more.status();
    if (!*more) break;
    if (record.kind == FlightRecordKind::kStep) {
      for (; before < flight.binds.size(); ++before)
        flight.binds[before].step = record.step;
      last = record.step;
    } else if (record.kind == FlightRecordKind::kEvents) {
      for (std::size_t i = 0; i < record.events.size(); ++i) {
        const Event& event = record.events[i];
        const bool null = event.block < 0 ||
                          std::find(flight.info.null_blocks.begin(), flight.info.null_blocks.end(),
                                    BlockId(event.block)) != flight.info.null_blocks.end();
        if (event.type == EventType::kBind && !null) {
          flight.binds.push_back({flight.records.size(), i, last + 1});
        }
      }
    }
    flight.records.push_back(std::move(record));
  }
  return flight;
}

absl::Status Replay(const LoadedFlight& flight, std::uint64_t max_bytes, bool audit,
                    Outcome& outcome) {
  absl::StatusOr<std::unique_ptr<FlightReplay>> replay =
      FlightReplay::Create(flight.info, max_bytes, audit, FlightReplay::Voids::kOwn);
  if (!replay.ok()) return replay.status();
  outcome.rows.clear();
  outcome.there.clear();
  outcome.findings.clear();
  const FlightReplay::OnRead on_read = [&](const ReplayedRead& read) {
    outcome.rows.insert(outcome.rows.end(), read.rows.begin(), read.rows.end());
    for (const RowInfo& info : read.infos)
      outcome.there.push_back(info.valid());
  };
  BlockLives lives;
  for (const FlightRecord& record : flight.records) {
    if (record.kind == FlightRecordKind::kStep) lives.Begin(record.step);
    if (record.kind == FlightRecordKind::kEvents) lives.Report(record.events);
    if (record.kind == FlightRecordKind::kPoison) lives = BlockLives();
    if (absl::Status status = (*replay)->Apply(record, on_read); !status.ok()) return status;
    if (!audit || record.kind != FlightRecordKind::kLanded) continue;
    for (const AuditFinding& finding : (*replay)->store().TakeEachFinding()) {
      if (finding.voided)
        outcome.findings.push_back({finding, lives.FindWindow(finding, record.step)});
    }
  }
  return absl::OkStatus();
}

// The number of rows that `without` returned with the route of another token.
std::uint64_t RowsWrong(const StoreOptions& store, const Outcome& whole, const Outcome& without) {
  const std::size_t width = store.shape.row_bytes();
  const std::size_t rows = std::min(whole.there.size(), without.there.size());
  const double threshold = store.audit_threshold.value_or(DefaultAuditThreshold(store.shape));
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    if (!whole.there[i] || !without.there[i]) continue;
    const std::uint8_t* a = whole.rows.data() + i * width;
    const std::uint8_t* b = without.rows.data() + i * width;
    if (std::equal(a, a + width, b)) continue;
    wrong += Agreement(store.shape, a, b) < threshold ? 1 : 0;
  }
  return wrong;
}

// Sets the fields of `bind` from the findings without it that are not findings of the whole flight.
void NoteFindings(const Outcome& whole, const Outcome& without, RemovedBind& bind) {
  for (const Outcome::Finding& found : without.findings) {
    const AuditFinding& finding = found.finding;
    const bool known = std::any_of(
        whole.findings.begin(), whole.findings.end(), [&](const Outcome::Finding& other) {
          return other.finding.block == finding.block && other.finding.step == finding.step;
        });
    if (known) continue;
    bind.found = true;
    if (finding.block != bind.block) continue;
    bind.block_named = true;
    if (found.window.after < bind.step && bind.step <= found.window.by) bind.step_named = true;
  }
}

}  // namespace

double RemovalReport::fraction() const {
  return harmful == 0 ? 1.0 : static_cast<double>(found) / static_cast<double>(harmful);
}

absl::StatusOr<RemovalReport> SingleBindRemovals(FlightReader& reader,
                                                 const RemovalOptions& options) {
  absl::StatusOr<LoadedFlight> loaded = LoadFlight(reader);
  if (!loaded.ok()) return loaded.status();
  LoadedFlight& flight = *loaded;
  const StoreOptions store = flight.info.ReplayOptions();
  Outcome whole;
  Outcome whole_audited;
  if (absl::Status status = Replay(flight, options.max_bytes, false, whole); !status.ok()) {
    return status;
  }
  if (absl::Status status = Replay(flight, options.max_bytes, true, whole_audited); !status.ok()) {
    return status;
  }

  RemovalReport report;
  report.binds = flight.binds.size();
  const std::uint64_t total = std::min<std::uint64_t>(report.binds, options.max_removals);
  Outcome without;
  const auto try_one = [&](const LoadedFlight::BindAt& at) {
    std::vector<Event>& events = flight.records[at.record].events;
    const auto index = static_cast<std::ptrdiff_t>(at.event);
    const Event event = events[at.event];
    RemovedBind bind;
    bind.step = at.step;
    bind.block = event.block;
    bind.with_key = event.key_size > 0;
    events.erase(events.begin() + index);
    absl::Status status = Replay(flight, options.max_bytes, false, without);
    if (status.ok()) bind.rows_wrong = RowsWrong(store, whole, without);
    if (status.ok() && bind.rows_wrong > 0) {
      status = Replay(flight, options.max_bytes, true, without);
      NoteFindings(whole_audited, without, bind);
      report.rows_still_wrong += RowsWrong(store, whole, without);
    }
    events.insert(events.begin() + index, event);
    ++report.tried;
    if (bind.rows_wrong == 0) return status;
    ++report.harmful;
    report.rows_wrong += bind.rows_wrong;
    report.found += bind.found ? 1 : 0;
    report.block_named += bind.block_named ? 1 : 0;
    report.step_named += bind.step_named ? 1 : 0;
    if (!bind.step_named && report.missed.size() < options.max_listed) {
      report.missed.push_back(bind);
    }
    return status;
  };
  for (std::uint64_t i = 0; i < total; ++i) {
    if (absl::Status status = try_one(flight.binds[i * report.binds / total]); !status.ok()) {
      return status;
    }
    if (options.progress) options.progress(i + 1, total);
  }
  return report;
}

}  // namespace waymark::sim
