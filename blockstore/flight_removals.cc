// SingleBindRemovals: what the audit would have said, had the engine forgotten one Bind.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "blockstore/flight_check.h"
#include "blockstore/flight_replay.h"

namespace waymark {
namespace {

using flight::FlightReplay;
using flight::ReplayedRead;

// A whole flight in memory, and where its Binds are.
struct LoadedFlight {
  struct BindAt {
    std::size_t record = 0;
    std::size_t event = 0;
  };
  FlightInfo info;
  std::vector<FlightRecord> records;
  std::vector<BindAt> binds;
};

// What one replay read: digests in the order of the reads, 0 where a row is missing.
struct Outcome {
  std::vector<std::uint64_t> digests;
  std::vector<AuditFinding> findings;
};

absl::StatusOr<LoadedFlight> LoadFlight(FlightReader& reader) {
  if (absl::Status status = reader.Rewind(); !status.ok()) return status;
  LoadedFlight flight;
  flight.info = reader.info();
  for (;;) {
    FlightRecord record;
    absl::StatusOr<bool> more = reader.Next(record);
    if (!more.ok()) return more.status();
    if (!*more) break;
    if (record.kind == FlightRecordKind::kBegin) {
      for (std::size_t i = 0; i < record.batch.events.size(); ++i) {
        const Event& event = record.batch.events[i];
        const bool null = event.block < 0 ||
                          std::find(flight.info.null_blocks.begin(), flight.info.null_blocks.end(),
                                    BlockId(event.block)) != flight.info.null_blocks.end();
        if (event.type == EventType::kBind && !null) {
          flight.binds.push_back({flight.records.size(), i});
        }
      }
    }
    flight.records.push_back(std::move(record));
  }
  return flight;
}

absl::Status Replay(const LoadedFlight& flight, std::uint64_t max_bytes, Outcome& outcome) {
  absl::StatusOr<std::unique_ptr<FlightReplay>> replay =
      FlightReplay::Create(flight.info, max_bytes);
  if (!replay.ok()) return replay.status();
  outcome.digests.clear();
  outcome.findings.clear();
  const FlightReplay::OnRead on_read = [&](const ReplayedRead& read) {
    outcome.digests.insert(outcome.digests.end(), read.digests.begin(), read.digests.end());
  };
  for (const FlightRecord& record : flight.records) {
    if (absl::Status status = (*replay)->Apply(record, on_read); !status.ok()) return status;
    if (record.kind != FlightRecordKind::kLanded) continue;
    for (const AuditFinding& finding : (*replay)->store().TakeFindings()) {
      if (finding.voided) outcome.findings.push_back(finding);
    }
  }
  return absl::OkStatus();
}

// What the audit said of the flight without this Bind, beyond what it says of the whole flight.
RemovedBind Compare(const Event& bind, std::uint64_t step, const Outcome& whole,
                    const Outcome& without) {
  RemovedBind result;
  result.step = step;
  result.block = bind.block;
  result.with_key = bind.key_size > 0;
  const std::size_t rows = std::min(whole.digests.size(), without.digests.size());
  for (std::size_t i = 0; i < rows; ++i) {
    if (whole.digests[i] != 0 && without.digests[i] != 0 &&
        whole.digests[i] != without.digests[i]) {
      ++result.rows_wrong;
    }
  }
  for (std::size_t i = 0; i < without.findings.size(); ++i) {
    const AuditFinding& finding = without.findings[i];
    const bool known =
        std::any_of(whole.findings.begin(), whole.findings.end(), [&](const AuditFinding& other) {
          return other.block == finding.block && other.step == finding.step;
        });
    if (known) continue;
    result.indicted = true;
    if (finding.block != bind.block) continue;
    result.block_named = true;
    if (finding.kept_step < step && step <= finding.step) result.step_named = true;
  }
  return result;
}

}  // namespace

double RemovalReport::fraction() const {
  return harmful == 0 ? 1.0 : static_cast<double>(indicted) / static_cast<double>(harmful);
}

absl::StatusOr<RemovalReport> SingleBindRemovals(FlightReader& reader,
                                                 const RemovalOptions& options) {
  absl::StatusOr<LoadedFlight> loaded = LoadFlight(reader);
  if (!loaded.ok()) return loaded.status();
  LoadedFlight& flight = *loaded;
  Outcome whole;
  if (absl::Status status = Replay(flight, options.max_bytes, whole); !status.ok()) return status;

  RemovalReport report;
  report.binds = flight.binds.size();
  const std::uint64_t total = std::min<std::uint64_t>(report.binds, options.max_removals);
  Outcome without;
  for (std::uint64_t i = 0; i < total; ++i) {
    const LoadedFlight::BindAt at = flight.binds[i * report.binds / total];
    OwnedStepBatch& batch = flight.records[at.record].batch;
    const Event bind = batch.events[at.event];
    const auto place = batch.events.begin() + static_cast<std::ptrdiff_t>(at.event);
    batch.events.erase(place);
    const absl::Status status = Replay(flight, options.max_bytes, without);
    batch.events.insert(batch.events.begin() + static_cast<std::ptrdiff_t>(at.event), bind);
    if (!status.ok()) return status;
    ++report.tried;
    const RemovedBind result = Compare(bind, batch.step, whole, without);
    if (result.rows_wrong == 0) {
      report.harmless_indicted += result.indicted ? 1 : 0;
    } else {
      ++report.harmful;
      report.indicted += result.indicted ? 1 : 0;
      report.block_named += result.block_named ? 1 : 0;
      report.step_named += result.step_named ? 1 : 0;
      if (!result.step_named && report.missed.size() < options.max_listed) {
        report.missed.push_back(result);
      }
    }
    if (options.progress) options.progress(i + 1, total);
  }
  return report;
}

}  // namespace waymark
