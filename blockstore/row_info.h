// RowInfo: what a reader gets with each row: whether it is valid, why not, and where it comes from.
#ifndef WAYMARK_BLOCKSTORE_ROW_INFO_H_
#define WAYMARK_BLOCKSTORE_ROW_INFO_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace waymark {

// Why a row is missing. The numbers are part of every format that holds coverage.
enum class Reason : std::uint8_t {
  kNone = 0,      // the row is valid
  kNeverWritten,  // no step wrote it since the block was bound, or the step was cancelled
  kNotCaptured,   // the forward ran, but a layer wrote no ids, or routing was not requested
  kExternalKv,    // the KV was loaded from outside, and the store had no page for its key
  kCapacity,      // there was no room; Cause says where
  kInvalidId,     // an id was out of range, or twice in a layer
  kAudit,         // voided: later writes to the block disagreed with the stored rows
  kReleased,      // the block was not, or not any more, of the request whose rows were asked for
  kNotTold,       // the array from which the row was read does not say; no store gives it
};
inline constexpr int kNumReasons = 9;
inline constexpr int kNumStoreReasons = 8;  // those of stores

// What *capacity* stands for. The numbers are part of every format that holds coverage; readers
// pass on those that they do not know.
enum class Cause : std::uint8_t {
  kNone = 0,     // the reason is another one, or the format from which the rows come had no cause
  kNoBuffer,     // the step was dropped as it began: all buffers were in use, or the device failed
  kStepDropped,  // the engine dropped the step, or ended without having submitted it
  kOtherRank,    // another rank dropped or cancelled the step, or the all-gather failed
  kLogFull,      // the log was full: what the engine told was lost
  kEventsLost,   // events were lost before they were reported (RoutingStore::LoseRows)
  kReset,        // a Reset ended the life of the block
  kNoPage,       // no page was free: blocks in use have all
  kHeldByReaders,  // no page was free: snapshots that were not released hold some
  kEvicted,        // the page went to rows of another block
  kNoMemory,       // no memory for the snapshot
  kStoreFailed,    // the store has failed
  kUnreachable,    // of rows from a source: it could not be reached, or returned an error
  kAbsent,         // it does not have the object
  kDamaged,        // the object is not the one that was published
  kTimeout,        // it had not come at the deadline
  kSkipped,        // the source was not asked, because it did not answer in time before
  kRefused,        // an authentic entry, but of another key
  kUnnamed,        // the weights have no name by which another process could have stored the rows
};
inline constexpr int kNumCauses = 19;

// How a row got into the block from which it was read.
enum class Provenance : std::uint8_t {
  kHere = 0,  // written by RowInfo::step since the block was bound
  kKept,      // as kHere; a later write was ignored because the row was protected (rule 5)
  kByKey,     // attached by key: written by another pass over the same prefix and version
  kUnknown,   // the array from which the row was read does not say; no store gives it
};
inline constexpr int kNumProvenances = 4;

// The version of a valid row whose array does not say it. No step has it.
inline constexpr std::uint64_t kUnknownVersion = ~std::uint64_t{0};

// The name in reports, documents and counters, e.g. "never written". Static storage.
[[nodiscard]] std::string_view ReasonName(Reason reason);
[[nodiscard]] std::string_view CauseName(Cause cause);  // "" for kNone
[[nodiscard]] std::string_view ProvenanceName(Provenance provenance);
// The reason with its cause, e.g. "capacity: page evicted".
[[nodiscard]] std::string WhyMissing(Reason reason, Cause cause);

// Describes one row that was read. A missing row (reason != kNone) has step 0 and version 0.
struct RowInfo {
  std::uint64_t step = 0;     // the step that wrote it
  std::uint64_t version = 0;  // the version of that step's weights
  Reason reason = Reason::kNeverWritten;
  // For a missing row: the provenance that it would have had. kKept: a later write was ignored.
  Provenance provenance = Provenance::kHere;
  Cause cause = Cause::kNone;     // of kCapacity, else kNone
  std::uint8_t reserved[5] = {};  // 0; named because RowInfo is written out as it is in memory

  [[nodiscard]] bool valid() const { return reason == Reason::kNone; }
  friend bool operator==(const RowInfo&, const RowInfo&) = default;
};

// Whether a row is known to be *reused*: another request than the one whose first step was
// `first_step` computed it. The first step of a preempted request is its first life's: what
// an earlier step wrote, the request cannot have written. So it is never true of a row that the
// request computed itself. It is false of a reused row that was computed since (a hit after a
// preemption) or that has no step (RowInfo::step 0: from a format without steps). REQUIRES: the
// steps of the rows and `first_step` are of one engine; call it before rows of other stores are
// joined with them.
[[nodiscard]] inline bool IsReused(const RowInfo& row, std::uint64_t first_step) {
  return row.valid() && row.step != 0 && row.step < first_step;
}

// A maximal run of rows [begin, end) with equal reason, cause, version and provenance.
struct CoverageRun {
  std::int64_t begin = 0;  // first row of the run, as a position in the sequence
  std::int64_t end = 0;    // one past its last row
  Reason reason = Reason::kNone;
  std::uint64_t version = 0;  // 0 if the rows are missing
  Provenance provenance = Provenance::kHere;
  Cause cause = Cause::kNone;

  friend bool operator==(const CoverageRun&, const CoverageRun&) = default;
};

// The maximal runs of rows [first, first + infos.size()), from their infos. Any thread. O(rows).
[[nodiscard]] std::vector<CoverageRun> CoverageOf(std::span<const RowInfo> infos,
                                                  std::int64_t first);

// Whether rows that are missing for `reason` may have `cause`, which may be one that is not known.
[[nodiscard]] constexpr bool IsCauseOf(Reason reason, Cause cause) {
  return cause == Cause::kNone ||
         (reason == Reason::kCapacity && static_cast<std::uint8_t>(cause) < 32);
}
// Reason and cause in one byte, as formats have them: bits 0-2 and 3-7; *not told* is 8.
[[nodiscard]] constexpr std::uint8_t ReasonByte(Reason reason, Cause cause) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(reason) | static_cast<unsigned>(cause)
                                                                       << 3);
}
// Reads one from outside. False if it has a cause and is not *capacity*, or *not told*.
[[nodiscard]] constexpr bool FromReasonByte(std::uint8_t byte, Reason& reason, Cause& cause) {
  const bool not_told = byte == static_cast<std::uint8_t>(Reason::kNotTold);
  reason = static_cast<Reason>(not_told ? byte : byte & 7);
  cause = static_cast<Cause>(not_told ? 0 : byte >> 3);
  return IsCauseOf(reason, cause);
}

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_ROW_INFO_H_
