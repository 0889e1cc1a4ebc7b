#include "blockstore/wire/coverage.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/invalid.h"
#include "blockstore/wire/varint.h"

namespace waymark::wire {
namespace {

absl::Status TooMuch(const char* section, std::size_t max_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(section, ": its runs take more than max_bytes, ", max_bytes, " bytes"));
}

// Reads the number of rows of a run. Returns false unless it is in [1, left].
bool GetCount(ByteReader& reader, std::int64_t left, std::int64_t& count) {
  std::uint64_t value = 0;
  if (!GetVarint(reader, value) || value < 1 || value > static_cast<std::uint64_t>(left)) {
    return false;
  }
  count = static_cast<std::int64_t>(value);
  return true;
}

}  // namespace

void AppendCoverage(std::span<const RowInfo> infos, WithProvenance with,
                    std::vector<std::uint8_t>& out) {
  const auto provenance_of = [with](const RowInfo& info) {
    return with == WithProvenance::kYes ? info.provenance : Provenance::kHere;
  };
  for (std::size_t begin = 0; begin < infos.size();) {
    const RowInfo& info = infos[begin];
    std::size_t end = begin + 1;
    while (end < infos.size() && infos[end].reason == info.reason &&
           infos[end].cause == info.cause && provenance_of(infos[end]) == provenance_of(info) &&
           (!info.valid() || infos[end].version == info.version)) {
      ++end;
    }
    PutVarint(out, end - begin);
    out.push_back(ReasonByte(info.reason, info.cause));
    out.push_back(static_cast<std::uint8_t>(provenance_of(info)));
    if (info.valid()) PutVarint(out, info.version);
    begin = end;
  }
}

void AppendSteps(std::span<const RowInfo> infos, std::vector<std::uint8_t>& out) {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::uint64_t stride = 0;
  std::uint64_t expected = 0;
  std::uint64_t rows = 0;
  const auto put = [&] {
    PutVarint(out, rows);
    PutVarint(out, Zigzag(static_cast<std::int64_t>(first - expected)));
    if (rows > 1) PutVarint(out, Zigzag(static_cast<std::int64_t>(stride)));
    expected = last;
  };
  for (const RowInfo& info : infos) {
    if (!info.valid()) continue;
    if (rows == 1) stride = info.step - last;
    if (rows > 0 && info.step - last == stride) {
      last = info.step;
      ++rows;
      continue;
    }
    if (rows > 0) put();
    first = last = info.step;
    rows = 1;
  }
  if (rows > 0) put();
}

void AppendProvenance(std::span<const Provenance> rows, std::vector<std::uint8_t>& out) {
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin + 1;
    while (end < rows.size() && rows[end] == rows[begin])
      ++end;
    PutVarint(out, end - begin);
    out.push_back(static_cast<std::uint8_t>(rows[begin]));
    begin = end;
  }
}

absl::StatusOr<RowRuns> RowRuns::Parse(std::span<const std::uint8_t> coverage,
                                       std::optional<std::span<const std::uint8_t>> steps,
                                       std::int64_t rows, std::size_t max_bytes) {
  RowRuns known;
  ByteReader reader(coverage);
  std::int64_t end = 0;
  std::int64_t valid_end = 0;
  while (end < rows) {
    std::int64_t count = 0;
    if (!GetCount(reader, rows - end, count)) {
      return Invalid("coverage: a run must have 1 row or more, and no more than are left");
    }
    Reason reason{};
    Cause cause{};
    const bool causes = FromReasonByte(reader.Get<std::uint8_t>(), reason, cause);
    const auto provenance = reader.Get<std::uint8_t>();
    if (!reader.ok()) return Invalid("coverage: it ends before all rows have a run");
    if (!causes) return Invalid("coverage: a cause must be of capacity");
    if (provenance >= kNumProvenances) return Invalid("coverage: a provenance is not in [0, 3]");
    std::uint64_t version = 0;
    if (reason == Reason::kNone) {
      if (!GetVarint(reader, version)) return Invalid("coverage: a version is not a varint");
      valid_end += count;
    }
    end += count;
    known.has_provenance_ |= provenance != 0;
    known.runs_.push_back(
        {end, valid_end, version, reason, static_cast<Provenance>(provenance), cause});
    if (known.runs_.size() > max_bytes / sizeof(Run)) return TooMuch("coverage", max_bytes);
  }
  if (!reader.done()) return Invalid("coverage: it has bytes after the last row");
  if (!steps.has_value()) return known;

  const std::size_t left = max_bytes - known.runs_.size() * sizeof(Run);
  ByteReader step_reader(*steps);
  std::uint64_t expected = 0;
  for (std::int64_t begin = 0; begin < valid_end;) {
    std::int64_t count = 0;
    if (!GetCount(step_reader, valid_end - begin, count)) {
      return Invalid("steps: a run must have 1 row or more, and no more than are valid");
    }
    std::uint64_t delta = 0;
    std::uint64_t stride = 0;
    if (!GetVarint(step_reader, delta) || (count > 1 && !GetVarint(step_reader, stride))) {
      return Invalid("steps: a step or a stride is not a varint");
    }
    StepRun run{begin, expected + static_cast<std::uint64_t>(Unzigzag(delta)),
                static_cast<std::uint64_t>(Unzigzag(stride))};
    expected = run.first + run.stride * static_cast<std::uint64_t>(count - 1);
    begin += count;
    known.steps_.push_back(run);
    if (known.steps_.size() > left / sizeof(StepRun)) return TooMuch("steps", max_bytes);
  }
  if (!step_reader.done()) return Invalid("steps: they have bytes after the last valid row");
  return known;
}

void RowRuns::Infos(std::int64_t begin, std::span<RowInfo> infos) const {
  if (infos.empty()) return;
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](std::int64_t row, const Run& r) { return row < r.end; });
  std::int64_t row = begin;
  // The number of valid rows before `row`.
  std::int64_t valid = run->reason == Reason::kNone ? run->valid_end - (run->end - row)
                       : run == runs_.begin()       ? 0
                                                    : run->valid_end;
  auto step = std::upper_bound(steps_.begin(), steps_.end(), valid,
                               [](std::int64_t at, const StepRun& r) { return at < r.begin; });
  if (step != steps_.begin()) --step;
  for (std::size_t i = 0; i < infos.size(); ++run) {
    for (; row < run->end && i < infos.size(); ++row, ++i) {
      RowInfo& info = infos[i];
      info = {0, run->version, run->reason, run->provenance, run->cause};
      if (run->reason != Reason::kNone || steps_.empty()) continue;
      if (step + 1 != steps_.end() && valid == step[1].begin) ++step;
      info.step = step->first + step->stride * static_cast<std::uint64_t>(valid - step->begin);
      ++valid;
    }
  }
}

std::vector<CoverageRun> RowRuns::Coverage(std::int64_t first) const {
  std::vector<CoverageRun> coverage;
  std::int64_t begin = 0;
  for (const Run& run : runs_) {
    if (!coverage.empty() && coverage.back().reason == run.reason &&
        coverage.back().version == run.version && coverage.back().provenance == run.provenance &&
        coverage.back().cause == run.cause) {
      coverage.back().end = first + run.end;
    } else {
      coverage.push_back(
          {first + begin, first + run.end, run.reason, run.version, run.provenance, run.cause});
    }
    begin = run.end;
  }
  return coverage;
}

absl::StatusOr<std::vector<Provenance>> ParseProvenance(std::span<const std::uint8_t> bytes,
                                                        std::int64_t rows, std::size_t max_bytes) {
  ByteReader reader(bytes);
  std::vector<Provenance> parsed;
  if (static_cast<std::uint64_t>(rows) > max_bytes) return TooMuch("provenance", max_bytes);
  parsed.reserve(std::min<std::size_t>(static_cast<std::size_t>(rows), 1 << 16));
  std::int64_t left = rows;
  while (left > 0) {
    std::int64_t count = 0;
    if (!GetCount(reader, left, count)) {
      return Invalid("provenance: a run must have 1 row or more, and no more than are left");
    }
    const auto provenance = reader.Get<std::uint8_t>();
    if (!reader.ok()) return Invalid("provenance: it ends before all rows have a run");
    if (provenance >= kNumProvenances) return Invalid("provenance: a value is not in [0, 3]");
    parsed.insert(parsed.end(), static_cast<std::size_t>(count),
                  static_cast<Provenance>(provenance));
    left -= count;
  }
  if (!reader.done()) return Invalid("provenance: it has bytes after the last row");
  return parsed;
}

}  // namespace waymark::wire
