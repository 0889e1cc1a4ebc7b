#include "blockstore/flight_check.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "blockstore/flight_replay.h"

namespace waymark {
namespace {

using flight::FlightReplay;
using flight::ReplayedRead;

std::string DescribeInfo(const RowInfo& info) {
  if (!info.valid()) return absl::StrCat("missing (", std::string(ReasonName(info.reason)), ")");
  return absl::StrCat("there (step ", info.step, ", version ", info.version, ", ",
                      std::string(ProvenanceName(info.provenance)), ")");
}

Indictment Indict(const AuditFinding& finding) {
  Indictment indictment;
  indictment.block = finding.block;
  indictment.step = finding.step;
  indictment.after = finding.kept_step;
  indictment.rows = finding.rows;
  indictment.agreement = finding.agreement;
  indictment.event = finding.block >= 0
                         ? absl::StrCat("Bind(block ", finding.block, ")")
                         : std::string("Bind of one of two blocks sealed with the same key");
  return indictment;
}

// Takes what the replaying store's audit has found; the store keeps only the newest.
void Collect(FlightReplay& replay, std::size_t max_listed, FlightVerdict& verdict) {
  for (const AuditFinding& finding : replay.store().TakeFindings()) {
    if (!finding.voided) continue;
    if (verdict.indictments.size() < max_listed) verdict.indictments.push_back(Indict(finding));
  }
}

// Whether two missing-or-there judgements of a row may differ because pages were short.
bool Excusable(const RowInfo& recorded, const RowInfo& replayed, bool same_route) {
  const auto short_of_pages = [](const RowInfo& info) {
    return info.reason == Reason::kCapacity || info.reason == Reason::kExternalKv;
  };
  if (recorded.valid() && replayed.valid()) return same_route;
  return short_of_pages(recorded) || short_of_pages(replayed);
}

void Judge(const ReplayedRead& read, std::int64_t block_tokens, bool pages_short,
           std::size_t max_listed, FlightVerdict& verdict) {
  ++verdict.reads;
  verdict.rows_read += read.infos.size();
  bool differs = false;
  for (std::size_t i = 0; i < read.infos.size(); ++i) {
    const RowInfo& recorded = read.recorded_infos[i];
    const RowInfo& replayed = read.infos[i];
    const bool both = recorded.valid() && replayed.valid();
    const bool same_route = both && read.recorded_digests[i] == read.digests[i];
    if (recorded == replayed && (!both || same_route)) {
      ++verdict.rows_right;
      if (!recorded.valid()) ++verdict.rows_missing[static_cast<std::size_t>(recorded.reason)];
      continue;
    }
    if (pages_short && Excusable(recorded, replayed, same_route)) {
      ++verdict.rows_excused;
      continue;
    }
    ++verdict.rows_differing;
    differs = true;
    if (verdict.differences.size() >= max_listed) continue;
    const std::int64_t row = read.begin + static_cast<std::int64_t>(i);
    const auto at = static_cast<std::size_t>(row / block_tokens);
    verdict.differences.push_back({read.read_id, row,
                                   at < read.blocks.size() ? read.blocks[at].value() : -1, recorded,
                                   replayed, both && !same_route});
  }
  if (differs) ++verdict.reads_differing;
}

}  // namespace

std::string ReadDifference::ToString() const {
  return absl::StrCat("read ", read_id, ", row ", row, ", block ", block, ": recorded ",
                      DescribeInfo(recorded), ", replayed ", DescribeInfo(replayed),
                      other_route ? ", another route" : "");
}

std::string Indictment::ToString() const {
  return absl::StrFormat(
      "block %d: step %d wrote %d rows that contradict what step %d left there (agreement %.2f): "
      "%s is missing after step %d and not after step %d",
      block, step, rows, after, agreement, event, after, step);
}

absl::StatusOr<FlightVerdict> CheckFlight(FlightReader& reader, const CheckOptions& options) {
  if (absl::Status status = reader.Rewind(); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<FlightReplay>> made =
      FlightReplay::Create(reader.info(), options.max_bytes);
  if (!made.ok()) return made.status();
  FlightReplay& replay = **made;
  FlightVerdict verdict;
  FlightRecord record;
  // A flight that was cut from a longer one has lost the snapshots that kept pages, too.
  const auto pages_short = [&] {
    if (replay.from_checkpoint()) return true;
    const Stats stats = replay.store().GetStats();
    return stats.evictions > 0 || stats.no_page > 0 || replay.steps_diverged() > 0;
  };
  const FlightReplay::OnRead on_read = [&](const ReplayedRead& read) {
    Judge(read, reader.info().block_tokens, pages_short(), options.max_listed, verdict);
  };
  for (;;) {
    absl::StatusOr<bool> more = reader.Next(record);
    if (!more.ok()) return more.status();
    if (!*more) break;
    if (record.kind == FlightRecordKind::kBegin) {
      if (verdict.steps++ == 0) verdict.first_step = record.batch.step;
      verdict.last_step = record.batch.step;
      verdict.events += record.batch.events.size();
    } else if (record.kind == FlightRecordKind::kClose) {
      verdict.incomplete = !record.complete;
    }
    if (absl::Status status = replay.Apply(record, on_read); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(std::string(status.message()), " (record ", reader.records(),
                                       " at byte ", record.offset, ")"));
    }
    if (record.kind == FlightRecordKind::kLanded) Collect(replay, options.max_listed, verdict);
    if (options.progress && reader.records() % 256 == 0) options.progress(reader.records());
  }
  Collect(replay, options.max_listed, verdict);
  const Stats stats = replay.store().GetStats();
  verdict.audited_rows = stats.audited_rows;
  verdict.pages_voided = stats.audit_voided_pages;
  verdict.records = reader.records();
  verdict.from_checkpoint = replay.from_checkpoint();
  verdict.truncated = reader.truncated();
  verdict.rows_not_judged = replay.rows_not_replayed() + replay.rows_waiting();
  return verdict;
}

}  // namespace waymark
