#include "blockstore/flight/check.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "blockstore/flight/replay.h"

namespace waymark {
namespace {

using flight::FlightReplay;
using flight::ReplayedRead;
using flight::StepWindow;

std::string DescribeInfo(const RowInfo& info) {
  if (!info.valid()) return absl::StrCat("missing (", WhyMissing(info.reason, info.cause), ")");
  return absl::StrCat("valid (step ", info.step, ", version ", info.version, ", ",
                      std::string(ProvenanceName(info.provenance)), ")");
}

MissedEvent ToMissedEvent(const AuditFinding& finding, const StepWindow& window) {
  return {.block = finding.block,
          .step = window.by,
          .after = window.after,
          .rows = finding.rows,
          .agreement = finding.agreement,
          .event = finding.block >= 0
                       ? absl::StrCat("Bind(block ", finding.block, ")")
                       : std::string("Bind of one of two blocks sealed with the same key")};
}

// The cause of *capacity* is not in a flight: what a step lacked is not replayed.
bool Agree(const RowInfo& recorded, RowInfo replayed) {
  replayed.cause = recorded.cause;
  return recorded == replayed;
}

// Whether the two results for a row may differ because pages were short.
bool Excusable(const RowInfo& recorded, const RowInfo& replayed, bool same_route) {
  const auto short_of_pages = [](const RowInfo& info) {
    return info.reason == Reason::kCapacity || info.reason == Reason::kExternalKv;
  };
  if (recorded.valid() && replayed.valid()) return same_route;
  return short_of_pages(recorded) || short_of_pages(replayed);
}

void CompareRead(const ReplayedRead& read, std::int64_t block_tokens, bool pages_short,
                 std::size_t max_listed, FlightReport& verdict) {
  verdict.rows_read += read.infos.size();
  for (std::size_t i = 0; i < read.infos.size(); ++i) {
    const RowInfo& recorded = read.recorded_infos[i];
    const RowInfo& replayed = read.infos[i];
    const bool both = recorded.valid() && replayed.valid();
    const bool same_route = both && read.recorded_digests[i] == read.digests[i];
    if (Agree(recorded, replayed) && (!both || same_route)) {
      ++verdict.rows_right;
      if (!recorded.valid()) ++verdict.rows_missing[static_cast<std::size_t>(recorded.reason)];
      continue;
    }
    if (pages_short && Excusable(recorded, replayed, same_route)) {
      ++verdict.rows_excused;
      continue;
    }
    ++verdict.rows_differing;
    if (verdict.differences.size() >= max_listed) continue;
    const std::int64_t row = read.begin + static_cast<std::int64_t>(i);
    const auto at = static_cast<std::size_t>(row / block_tokens);
    verdict.differences.push_back({read.read_id, row,
                                   at < read.blocks.size() ? read.blocks[at].value() : -1, recorded,
                                   replayed, both && !same_route});
  }
}

}  // namespace

std::string ReadDifference::ToString() const {
  return absl::StrCat("read ", read_id, ", row ", row, ", block ", block, ": recorded ",
                      DescribeInfo(recorded), ", replayed ", DescribeInfo(replayed),
                      other_route ? ", another route" : "");
}

std::string MissedEvent::ToString() const {
  std::string where = block < 0 ? "" : absl::StrCat("block ", block, ", ");
  absl::StrAppend(&where, "step ", step, ": ", event, " is missing ");
  if (after == 0) {
    absl::StrAppend(&where, "at step ", step, " or before");
  } else if (after + 1 == step) {
    absl::StrAppend(&where, "at step ", step);
  } else {
    absl::StrAppend(&where, "at one of the steps ", after + 1, " to ", step);
  }
  return absl::StrFormat(
      "%s, a key is wrong, or rows were written to wrong slots or in another order than the batch: "
      "%d rows contradict those that were kept (agreement %.2f)",
      where, rows, agreement);
}

absl::StatusOr<FlightReport> CheckFlight(FlightReader& reader, const CheckOptions& options) {
  reader.Rewind();
  const auto voids =
      reader.info().audit ? FlightReplay::Voids::kRecorded : FlightReplay::Voids::kOwn;
  absl::StatusOr<std::unique_ptr<FlightReplay>> made =
      FlightReplay::Create(reader.info(), options.max_bytes, /*audit=*/true, voids);
  if (!made.ok()) return made.status();
  FlightReplay& replay = **made;
  FlightReport verdict;
  FlightRecord record;
  // A flight that begins with a checkpoint lacks the earlier snapshots, which also kept pages.
  const auto pages_short = [&] {
    if (replay.from_checkpoint()) return true;
    const Stats stats = replay.store().GetStats();
    return stats.evictions > 0 || stats.no_page > 0;
  };
  absl::flat_hash_set<std::uint64_t> reads;  // a long read is several records
  absl::flat_hash_set<std::uint64_t> differing;
  const FlightReplay::OnRead on_read = [&](const ReplayedRead& read) {
    reads.insert(read.read_id);
    const std::uint64_t before = verdict.rows_differing;
    CompareRead(read, reader.info().block_tokens, pages_short(), options.max_listed, verdict);
    if (verdict.rows_differing > before) differing.insert(read.read_id);
  };
  // The seals of pages that keep their rows although a write contradicted them: later writes to
  // such a page contradict the same rows again. And what is listed, by block and step: a block of
  // several pages has several findings.
  absl::flat_hash_set<std::pair<std::int32_t, std::uint64_t>> contradicted, listed;
  for (;;) {
    absl::StatusOr<bool> more = reader.Next(record);
    if (!more.ok()) return more.status();
    if (!*more) break;
    if (record.kind == FlightRecordKind::kStep) {
      if (verdict.steps++ == 0) verdict.first_step = record.step;
      verdict.last_step = record.step;
    } else if (record.kind == FlightRecordKind::kEvents) {
      verdict.events += record.events.size();
    } else if (record.kind == FlightRecordKind::kClose) {
      verdict.incomplete = !record.complete;
    }
    if (absl::Status status = replay.Apply(record, on_read); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(std::string(status.message()), " (record ", reader.records(),
                                       " at byte ", record.offset, ")"));
    }
    // Taken after each landing, since the store keeps only its newest findings.
    if (record.kind == FlightRecordKind::kLanded) {
      for (const AuditFinding& finding : replay.store().TakeEachFinding()) {
        if (!finding.voided || verdict.missed_events.size() >= options.max_listed) continue;
        if (voids == FlightReplay::Voids::kRecorded && finding.block >= 0 &&
            !contradicted.emplace(finding.block, finding.sealed_step).second) {
          continue;
        }
        const StepWindow window = replay.FindWindow(finding);
        if (!listed.emplace(finding.block, window.by).second) continue;
        verdict.missed_events.push_back(ToMissedEvent(finding, window));
      }
    }
    if (options.progress && reader.records() % 256 == 0) options.progress(reader.records());
  }
  const Stats stats = replay.store().GetStats();
  verdict.audited_rows = stats.audited_rows;
  verdict.pages_voided = stats.audit_voided_pages;
  verdict.reads = reads.size();
  verdict.reads_differing = differing.size();
  verdict.records = reader.records();
  verdict.from_checkpoint = replay.from_checkpoint();
  verdict.truncated = reader.truncated();
  verdict.rows_not_checked = replay.rows_not_replayed();
  return verdict;
}

}  // namespace waymark
