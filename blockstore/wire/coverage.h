// The coverage, steps and provenance of rows as runs: written, parsed, and expanded row by row.
// docs/internals/format.md defines the bytes. Free functions may be called from any thread.
#ifndef WAYMARK_BLOCKSTORE_WIRE_COVERAGE_H_
#define WAYMARK_BLOCKSTORE_WIRE_COVERAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/row_info.h"

namespace waymark::wire {

// Whether coverage carries the provenance of rows. kNo writes kHere for every row: nodes and tail
// segments are shared between requests, and provenance differs from request to request.
enum class WithProvenance : std::uint8_t { kNo, kYes };

// Appends the coverage of `infos` to `out`, as maximal runs.
// REQUIRES: every reason and provenance is one of its enum.
void AppendCoverage(std::span<const RowInfo> infos, WithProvenance provenance,
                    std::vector<std::uint8_t>& out);
// Appends the steps of the valid rows of `infos` to `out`. A run is a first step and a stride; each
// run is the longest that can begin at its first row.
void AppendSteps(std::span<const RowInfo> infos, std::vector<std::uint8_t>& out);
// Appends the provenance of every row to `out`, as maximal runs. Handles carry this.
void AppendProvenance(std::span<const Provenance> rows, std::vector<std::uint8_t>& out);

// Parsed coverage and steps: the infos of any number of rows, kept as runs. Its memory follows from
// the number of runs in the bytes, never from the number of rows that they claim.
//
// A value that owns its memory; const access from any thread. Default constructed: no rows.
class RowRuns {
 public:
  // Parses the coverage of `rows` rows, 0 ... 2^31 - 1, and the steps of the valid ones. With
  // `steps` nullopt the steps are unknown, and every step reads as 0. The bytes may go afterwards.
  //
  // Any bytes are safe. InvalidArgument naming the section and what is wrong, unless every row has
  // exactly one run and every valid row exactly one step. ResourceExhausted if the runs take more
  // than `max_bytes` bytes of memory.
  [[nodiscard]] static absl::StatusOr<RowRuns> Parse(
      std::span<const std::uint8_t> coverage, std::optional<std::span<const std::uint8_t>> steps,
      std::int64_t rows, std::size_t max_bytes);

  [[nodiscard]] std::int64_t rows() const { return runs_.empty() ? 0 : runs_.back().end; }
  // Whether a run has a provenance other than kHere.
  [[nodiscard]] bool has_provenance() const { return has_provenance_; }
  // Writes the infos of rows [begin, begin + infos.size()). REQUIRES: they lie in [0, rows()).
  void Infos(std::int64_t begin, std::span<RowInfo> infos) const;
  // The runs of all rows, numbered from `first`; neighbouring runs that agree are merged.
  [[nodiscard]] std::vector<CoverageRun> Coverage(std::int64_t first) const;

 private:
  // Rows that agree in reason, cause, version and provenance.
  struct Run {
    std::int64_t end;        // one past its last row
    std::int64_t valid_end;  // valid rows before `end`
    std::uint64_t version;
    Reason reason;
    Provenance provenance;
    Cause cause;
  };
  // Valid rows whose steps are first, first + stride, first + 2 * stride, ...
  struct StepRun {
    std::int64_t begin;  // valid rows before its first row
    std::uint64_t first;
    std::uint64_t stride;  // modulo 2^64: steps may decrease
  };

  std::vector<Run> runs_;
  std::vector<StepRun> steps_;
  bool has_provenance_ = false;
};

// Parses the provenance of `rows` rows into one entry per row. Any bytes are safe. InvalidArgument
// naming what is wrong; ResourceExhausted if the result takes more than `max_bytes` bytes.
[[nodiscard]] absl::StatusOr<std::vector<Provenance>> ParseProvenance(
    std::span<const std::uint8_t> bytes, std::int64_t rows, std::size_t max_bytes);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_COVERAGE_H_
