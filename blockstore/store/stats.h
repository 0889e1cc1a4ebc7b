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

// A consistent copy of the counters.
struct Stats {
  // Steps.
  std::uint64_t steps_begun = 0;
  std::uint64_t steps_landed = 0;
  std::uint64_t steps_dropped = 0;       // by Drop, and by BeginStep if there was no room
  std::uint64_t steps_refused_ring = 0;  // of these: max_steps_in_flight were open
  std::uint64_t steps_cancelled = 0;
  std::uint64_t steps_ahead = 0;    // whose ids were fetched while an earlier step waited
  std::uint64_t exceptions = 0;     // steps of which a call of StepRows threw, and throws of Done()
  std::uint64_t steps_overdue = 0;  // whose ids had not arrived StoreOptions::overdue_after
                                    // after Submit
  // Rows.
  std::uint64_t rows_landed = 0;                          // became valid
  std::array<std::uint64_t, kNumReasons> rows_missing{};  // became missing, by reason
  std::uint64_t rows_ignored = 0;  // writes to protected rows, and second rows of a slot
  std::uint64_t rows_not_asked = 0;
  std::uint64_t rows_padding = 0;  // slots of -1 and of null blocks
  std::uint64_t rows_outside = 0;  // of steps with device_slots: not in the batch's slots
  // The log and its events.
  std::uint64_t log_records = 0;  // applied
  std::uint64_t log_losses = 0;   // times that all rows were lost, because the log was full, or a
                                  // message was missing, refused or of another sender
  std::uint64_t events = 0;
  std::uint64_t events_on_null_blocks = 0;
  std::uint64_t releases_below_zero = 0;
  std::uint64_t hits_by_key = 0;   // Binds with a key that attached a page
  std::uint64_t second_seals = 0;  // pages sealed with a key that another page had
  // Pages.
  std::uint64_t pages = 0;         // of the store
  std::uint64_t spare_pages = 0;   // of the store, beside these
  std::uint64_t pages_in_use = 0;  // bound, indexed, or pinned by a snapshot
  std::uint64_t pages_in_use_peak = 0;
  // Of these: neither a block nor a key has them any more, but snapshots do.
  std::uint64_t pages_detached = 0;
  std::uint64_t pages_detached_peak = 0;
  std::uint64_t evictions = 0;
  std::uint64_t copies_on_write = 0;     // pages taken for copy-on-write
  std::uint64_t no_page = 0;             // rows and copies for which there was no free page
  std::uint64_t rows_without_page = 0;   // missing (capacity), because of no_page
  std::uint64_t bytes = 0;               // of memory reserved for pages, stamps and tables
  std::uint64_t bytes_touched_peak = 0;  // bytes, less pages that were never used, and the stamps
                                         // and records of those that are spare
  // Audit.
  std::uint64_t audited_rows = 0;         // ignored writes that were compared with the kept row
  std::uint64_t audit_disagreements = 0;  // of them: in some layer the sets of ids differ
  std::uint64_t audit_voided_pages = 0;
  std::uint64_t audit_voided_rows = 0;
  double audit_agreement_sum = 0;  // mean agreement = sum / audited_rows
  // Snapshots.
  std::uint64_t snapshots_taken = 0;
  std::uint64_t snapshots_live = 0;
  std::uint64_t snapshots_lost = 0;      // the log was full, or no memory: their rows are
                                         // missing (capacity)
  std::uint64_t snapshots_given_up = 0;  // of messages: too many waited to be taken, or their
                                         // sender was replaced
  // From a call of BeginStep until its turn: it waits for the ids of earlier steps, and its own.
  LatencyHistogram log_lag;
  // From Submit to the end of landing.
  LatencyHistogram landing_lag;
  // Why the store has failed (RoutingStore::status); empty: it has not.
  std::string failure;

  // The main counters as text, one per line. Allocates.
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
  std::uint32_t rows = 0;         // rows compared
  double agreement = 0;           // mean share of ids in common, in [0, 1]
  bool voided = false;            // agreement below the threshold: the page's rows were voided
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
// One finding for each cause: those of blocks that were written again, and those of two pages.
// Allocates.
[[nodiscard]] std::vector<AuditFinding> MergeCauses(const std::vector<AuditFinding>& findings);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STATS_H_
