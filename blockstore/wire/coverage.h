// Coverage and steps: what is known of rows, as runs. Both directions; any thread.
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

// Whether coverage says how rows came, or leaves that 0 (nodes: it belongs to a request).
enum class WithProvenance : std::uint8_t { kNo, kYes };

// Appends the coverage of `infos` as the longest runs there are. The reason of every info must be
// one that has a name.
void AppendCoverage(std::span<const RowInfo> infos, WithProvenance provenance,
                    std::vector<std::uint8_t>& out);
// Appends the steps of the valid rows of `infos`. Each run is the longest that can begin there.
void AppendSteps(std::span<const RowInfo> infos, std::vector<std::uint8_t>& out);
// Appends the provenance of every row, as the longest runs: what handles carry.
void AppendProvenance(std::span<const Provenance> rows, std::vector<std::uint8_t>& out);

// What was parsed: the infos of any rows, without an entry for each. Its memory follows from the
// number of runs, never from the number of rows that they claim. A value; const access from any
// thread.
class KnownRows {
 public:
  // `rows` rows, 0 ... 2^31 - 1. `steps`: nullopt where they are not known (every step is then 0).
  // InvalidArgument naming what is wrong: each row has one run, and each valid row one step, no
  // more and no fewer; any bytes are safe. ResourceExhausted when the runs take more than
  // `max_bytes`.
  [[nodiscard]] static absl::StatusOr<KnownRows> Parse(
      std::span<const std::uint8_t> coverage, std::optional<std::span<const std::uint8_t>> steps,
      std::int64_t rows, std::size_t max_bytes);

  [[nodiscard]] std::int64_t rows() const { return runs_.empty() ? 0 : runs_.back().end; }
  [[nodiscard]] std::int64_t valid_rows() const {
    return runs_.empty() ? 0 : runs_.back().valid_end;
  }
  // Whether a run names a provenance other than kHere.
  [[nodiscard]] bool has_provenance() const { return has_provenance_; }
  // Writes the infos of rows [begin, begin + infos.size()). REQUIRES: they lie in [0, rows()).
  void Infos(std::int64_t begin, std::span<RowInfo> infos) const;
  // The runs of rows [0, rows()), counted from `first`; runs that agree are put together.
  [[nodiscard]] std::vector<CoverageRun> Coverage(std::int64_t first) const;

 private:
  struct Run {
    std::int64_t end;        // one past its last row
    std::int64_t valid_end;  // valid rows before `end`
    std::uint64_t version;
    Reason reason;
    Provenance provenance;
  };
  struct StepRun {
    std::int64_t begin;  // valid rows before its first
    std::uint64_t first;
    std::uint64_t stride;  // modulo 2^64
  };

  std::vector<Run> runs_;
  std::vector<StepRun> steps_;
  bool has_provenance_ = false;
};

// The provenance of `rows` rows, one each. InvalidArgument naming what is wrong; ResourceExhausted
// when they take more than `max_bytes`.
[[nodiscard]] absl::StatusOr<std::vector<Provenance>> ParseProvenance(
    std::span<const std::uint8_t> bytes, std::int64_t rows, std::size_t max_bytes);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_COVERAGE_H_
