// Stats: the counters of a store since it was created; AuditFinding: a finding of its audit.
#ifndef WAYMARK_BLOCKSTORE_STORE_STATS_H_
#define WAYMARK_BLOCKSTORE_STORE_STATS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "blockstore/row_info.h"

namespace waymark {

// A histogram of durations with 8 buckets per octave: quantiles are exact to 9 %.
class LatencyHistogram {
 public:
  // One thread at a time.
  void Add(std::uint64_t nanoseconds);
  // The upper bound, in nanoseconds, of the bucket with quantile q in [0, 1]; 0 if it is empty.
  [[nodiscard]] std::uint64_t Quantile(double q) const;
  [[nodiscard]] std::uint64_t count() const { return count_; }

 private:
  static constexpr int kBuckets = 8 * 40;
  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
};

// Every counter of a store, once: X(name, what it counts). C and Python have them by these names.
#define WAYMARK_STORE_COUNTERS(X)                                                           \
  X(steps_begun, "steps that were told")                                                    \
  X(steps_landed, "steps whose rows were written")                                          \
  X(steps_dropped, "steps dropped: by Drop, or at once because there was no room")          \
  X(steps_without_room, "of these: max_steps_in_flight were in flight")                     \
  X(steps_cancelled, "steps that did not run")                                              \
  X(steps_ahead, "steps whose ids were fetched while an earlier step waited")               \
  X(exceptions, "steps of which a call of StepRows threw, and throws of Done()")            \
  X(steps_overdue, "steps that had no ids overdue_after behind their submit, or were open") \
  X(rows_landed, "rows that became valid")                                                  \
  X(rows_ignored, "writes to protected rows, and second rows of a slot")                    \
  X(rows_not_asked, "rows whose request did not ask for routing")                           \
  X(rows_padding, "slots of -1 and of null blocks")                                         \
  X(log_records, "records of the log that were applied")                                    \
  X(log_losses, "times that all rows were lost: log full, or events lost (LoseRows)")       \
  X(events, "events that were applied")                                                     \
  X(events_on_null_blocks, "of these: on null blocks")                                      \
  X(releases_below_zero, "releases of blocks without users: must stay 0")                   \
  X(binds_with_users, "binds of blocks that had users: a release was not told")             \
  X(retains_unsealed, "retains of unsealed rows: of a fork, or a seal was not told")        \
  X(hits_by_key, "binds with a key that attached a page")                                   \
  X(second_seals, "pages sealed with a key that another page had")                          \
  X(pages, "pages of the store")                                                            \
  X(spare_pages, "beside these, for pages that only snapshots hold any more")               \
  X(pages_in_use, "bound, indexed, or pinned by a snapshot")                                \
  X(pages_in_use_peak, "their most")                                                        \
  X(pages_detached, "of these: held by snapshots only")                                     \
  X(pages_detached_peak, "their most")                                                      \
  X(evictions, "pages evicted")                                                             \
  X(copies_on_write, "pages taken for copy-on-write")                                       \
  X(no_page, "rows and copies for which there was no free page")                            \
  X(rows_without_page, "rows missing (capacity) because of no_page")                        \
  X(bytes, "of memory reserved for pages, stamps and tables")                               \
  X(bytes_touched_peak, "of these: in pages, stamps and records that were ever used")       \
  X(audited_rows, "ignored writes that were compared with the kept row")                    \
  X(audit_disagreements, "of these: in some layer the sets of ids differ")                  \
  X(audit_voided_pages, "pages that the audit voided")                                      \
  X(audit_voided_rows, "rows that it voided, with theirs")                                  \
  X(snapshots_taken, "snapshots taken")                                                     \
  X(snapshots_live, "snapshots that were not released yet")                                 \
  X(blocks_without_users, "blocks of snapshots without users: must stay 0")                 \
  X(snapshots_lost, "snapshots lost: log full, or no memory")

// What is computed of other fields, X(name, expression on Stats, meaning).
#define WAYMARK_STORE_MEASURES(X)                                                                  \
  X(audit_agreement, audit_agreement(), "mean agreement of the audited rows; 1 if there are none") \
  X(log_lag_p50_ns, log_lag.Quantile(0.5),                                                         \
    "from the call of a step until its turn; of half of the steps at most")                        \
  X(log_lag_p99_ns, log_lag.Quantile(0.99),                                                        \
    "from the call of a step until its turn; of 99 of 100 steps at most")                          \
  X(landing_lag_p50_ns, landing_lag.Quantile(0.5),                                                 \
    "from the ids of a step until its rows are there; of half of the steps at most")               \
  X(landing_lag_p99_ns, landing_lag.Quantile(0.99),                                                \
    "from the ids of a step until its rows are there; of 99 of 100 steps at most")

// A consistent copy of the counters.
struct Stats {
#define WAYMARK_COUNTER(name, meaning) std::uint64_t name = 0;
  WAYMARK_STORE_COUNTERS(WAYMARK_COUNTER)
#undef WAYMARK_COUNTER
  std::array<std::uint64_t, kNumStoreReasons> rows_missing{};  // that became missing, by reason
  double audit_agreement_sum = 0;                              // over audited_rows
  // From a call of BeginStep until its turn: it waits for the ids of earlier steps, and its own.
  LatencyHistogram log_lag;
  // From Submit to the end of landing.
  LatencyHistogram landing_lag;
  // Why the store has failed (RoutingStore::status); empty: it has not.
  std::string failure;

  // Mean agreement of the audited rows; 1 if there are none.
  [[nodiscard]] double audit_agreement() const {
    return audited_rows != 0 ? audit_agreement_sum / static_cast<double>(audited_rows) : 1;
  }
  // Every counter that is not 0, one per line, and why the store has failed. Allocates.
  [[nodiscard]] std::string ToString() const;
};

// The audit compared later writes to `block`, or a second page under the same key, with the rows
// that were kept. One finding stands for one cause: further pages of which the same is found are
// counted.
struct AuditFinding {
  bool two_pages = false;   // two pages were sealed with one key; else a block was written again
  std::int32_t block = -1;  // the block; -1: two pages, and the second has none
  std::uint64_t step = 0;   // the step whose write disagreed: of two pages, the later one
  std::uint64_t kept_step = 0;    // the step that wrote the kept rows
  std::uint64_t sealed_step = 0;  // the step with which the page was sealed
  std::uint32_t rows = 0;         // rows compared; if the page stays, those that were voided
  double agreement = 0;           // mean share of ids in common, in [0, 1]
  bool voided = false;            // the rows of the page were voided, or these rows alone
  std::uint32_t pages = 1;        // findings for which this one stands; the fields above are of the
                                  // first, and
  std::uint64_t last_step = 0;    // this one is the `step` of the last

  // Counts `other`, a later finding of the same cause.
  void Add(const AuditFinding& other) {
    pages += other.pages;
    last_step = other.last_step;
  }
  // One line of text that names the event which the engine must have missed. Allocates.
  [[nodiscard]] std::string ToString() const;
};
// One finding for each cause: blocks that were written again, and two pages.
// Allocates.
[[nodiscard]] std::vector<AuditFinding> MergeCauses(const std::vector<AuditFinding>& findings);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STATS_H_
