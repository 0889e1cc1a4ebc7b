// RowInfo: what a reader gets with each row: whether it is valid, why not, and where it comes from.
#ifndef WAYMARK_BLOCKSTORE_ROW_INFO_H_
#define WAYMARK_BLOCKSTORE_ROW_INFO_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace waymark {

// Why a row is missing. The numbers are part of every format that holds coverage.
enum class Reason : std::uint8_t {
  kNone = 0,      // the row is valid
  kNeverWritten,  // no step wrote it since the block was bound, or the step was cancelled
  kNotCaptured,   // the forward ran, but a layer wrote no ids, or routing was not requested
  kExternalKv,    // the KV was loaded from outside, and the store had no page for its key
  kCapacity,      // step dropped, page evicted, no free page, or records lost
  kInvalidId,     // an id was out of range, or twice in a layer
  kAudit,         // voided: later writes to the block disagreed with the stored rows
};
inline constexpr int kNumReasons = 7;

// How a row got into the block from which it was read.
enum class Provenance : std::uint8_t {
  kHere = 0,  // written by RowInfo::step since the block was bound
  kKept,      // as kHere; a later write was ignored because the row was protected (rule 5)
  kByKey,     // attached by key: written by another pass over the same prefix and version
};
inline constexpr int kNumProvenances = 3;

// The name in reports, documents and counters, e.g. "never written". Static storage.
[[nodiscard]] std::string_view ReasonName(Reason reason);
[[nodiscard]] std::string_view ProvenanceName(Provenance provenance);

// Describes one row that was read. A missing row (reason != kNone) has step 0 and version 0.
struct RowInfo {
  std::uint64_t step = 0;     // the step that wrote it
  std::uint64_t version = 0;  // the version of that step's weights
  Reason reason = Reason::kNeverWritten;
  // For a missing row: the provenance that it would have had. kKept: a later write was ignored.
  Provenance provenance = Provenance::kHere;
  std::uint8_t reserved[6] = {};  // 0; named because RowInfo is written out as it is in memory

  [[nodiscard]] bool valid() const { return reason == Reason::kNone; }
  friend bool operator==(const RowInfo&, const RowInfo&) = default;
};

// Whether a row is known to be *reused*: another request than the one whose first step was
// `first_step` computed it. The first step is that of the first of its lives, if it was preempted:
// what an earlier step wrote, the request cannot have written. So it is never true of a row that
// the request computed itself. It is false of a reused row that was computed since (a hit after a
// preemption) or that has no step (RowInfo::step 0: from a format without steps). REQUIRES: the
// steps of the rows and `first_step` are of one engine; call it before rows of other stores are
// joined with them.
[[nodiscard]] inline bool IsReused(const RowInfo& row, std::uint64_t first_step) {
  return row.valid() && row.step != 0 && row.step < first_step;
}

// A maximal run of rows [begin, end) with equal reason, version and provenance.
struct CoverageRun {
  std::int64_t begin = 0;  // first row of the run, as a position in the sequence
  std::int64_t end = 0;    // one past its last row
  Reason reason = Reason::kNone;
  std::uint64_t version = 0;  // 0 if the rows are missing
  Provenance provenance = Provenance::kHere;

  friend bool operator==(const CoverageRun&, const CoverageRun&) = default;
};

// The maximal runs of rows [first, first + infos.size()), from their infos. Any thread. O(rows).
[[nodiscard]] std::vector<CoverageRun> CoverageOf(std::span<const RowInfo> infos,
                                                  std::int64_t first);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_ROW_INFO_H_
