// Why a row is missing, where a row comes from, and what a reader is told about each row.
#ifndef WAYMARK_BLOCKSTORE_ROW_INFO_H_
#define WAYMARK_BLOCKSTORE_ROW_INFO_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace waymark {

// Why there is no row. The numbers are part of every format that carries coverage.
enum class Reason : std::uint8_t {
  kNone = 0,      // the row is there
  kNeverWritten,  // no step of the block's present life wrote it (or the step was cancelled)
  kNotCaptured,   // the forward ran, but a layer's source did not write, or the row did not ask
  kExternalKv,    // the KV came from outside, and no page of this store had its rows
  kCapacity,      // dropped step, evicted page, no page to be had, stamps that wrapped
  kInvalidId,     // an id was out of range, or repeated within a layer
  kAudit,         // voided: later writes of the block contradicted what was kept
};
inline constexpr int kNumReasons = 7;

// How a row came to be where it was read.
enum class Provenance : std::uint8_t {
  kHere = 0,    // written by the step it names, in the present life of this block
  kKept,        // as kHere, and a later write of the row was ignored (rule 3)
  kByKey,       // attached through the key index: another pass over the same prefix and version
  kRecomputed,  // routed again beside a fused kernel (off unless the engine asks for it)
};
inline constexpr int kNumProvenances = 4;

// The name that reports, docs and counters use, e.g. "never written". Static storage.
[[nodiscard]] std::string_view ReasonName(Reason reason);
[[nodiscard]] std::string_view ProvenanceName(Provenance provenance);

// What is known of one row that was read. A missing row (reason != kNone) has step 0 and version 0.
struct RowInfo {
  std::uint64_t step = 0;     // the step that wrote it
  std::uint64_t version = 0;  // the weights of that step
  Reason reason = Reason::kNeverWritten;
  // Of a missing row: how the row would have come; kKept says that a later write was ignored.
  Provenance provenance = Provenance::kHere;
  std::uint8_t reserved[6] = {};  // 0: named, because infos leave the process as they lie

  [[nodiscard]] bool valid() const { return reason == Reason::kNone; }
  friend bool operator==(const RowInfo&, const RowInfo&) = default;
};

// A maximal run of rows [begin, end) that agree in reason, version and provenance.
struct CoverageRun {
  std::int64_t begin = 0;  // first row of the run, counted from the start of the sequence
  std::int64_t end = 0;    // one past its last row
  Reason reason = Reason::kNone;
  std::uint64_t version = 0;  // 0 when the run is missing
  Provenance provenance = Provenance::kHere;

  friend bool operator==(const CoverageRun&, const CoverageRun&) = default;
};

// Groups the infos of rows [first, first + infos.size()) into maximal runs. Any thread. O(rows).
[[nodiscard]] std::vector<CoverageRun> CoverageOf(std::span<const RowInfo> infos,
                                                  std::int64_t first);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_ROW_INFO_H_
