// Stats: what a store has counted since it was made.
#ifndef WAYMARK_BLOCKSTORE_STORE_STATS_H_
#define WAYMARK_BLOCKSTORE_STORE_STATS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "blockstore/row_info.h"

namespace waymark {

// A histogram of durations with 8 buckets an octave: any quantile within 9 %.
class LatencyHistogram {
 public:
  // One thread at a time.
  void Add(std::uint64_t nanoseconds);
  // The upper bound of the bucket that holds quantile q in [0, 1], in nanoseconds; 0 when empty.
  [[nodiscard]] std::uint64_t Quantile(double q) const;
  [[nodiscard]] std::uint64_t count() const { return count_; }

 private:
  static constexpr int kBuckets = 8 * 40;
  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
};

// Experts chosen by landed rows of one version: counts[layer * num_experts + expert].
struct ExpertCounts {
  std::uint64_t version = 0;
  std::vector<std::uint64_t> counts;
};

// A consistent copy of the counters; see the field comments for what moves each.
struct Stats {
  // Steps.
  std::uint64_t steps_begun = 0;
  std::uint64_t steps_landed = 0;
  std::uint64_t steps_dropped = 0;  // by the engine, for a full ring, or while stamps wrap
  std::uint64_t steps_cancelled = 0;
  std::uint64_t steps_refused_ring = 0;  // of the dropped: no room in the ring
  std::uint64_t rebases = 0;             // stamps wrapped: table and index were emptied
  // Rows, counted once per page they land in.
  std::uint64_t rows_claimed = 0;
  std::uint64_t rows_landed = 0;                          // became valid
  std::array<std::uint64_t, kNumReasons> rows_missing{};  // became missing, by reason
  std::uint64_t rows_ignored = 0;  // writes of protected rows, and second rows of one slot
  std::uint64_t rows_not_asked = 0;
  std::uint64_t rows_padding = 0;  // slots of -1 and of null blocks
  std::uint64_t rows_outside = 0;  // of device steps: at slots that their batch did not name
  std::uint64_t rows_without_claim =
      0;  // landed late: dropped, truncated or claimed again meanwhile
  // Events.
  std::uint64_t events = 0;
  std::uint64_t events_on_null_blocks = 0;
  std::uint64_t releases_below_zero = 0;
  std::uint64_t hits_by_key = 0;   // Binds that attached a page
  std::uint64_t second_seals = 0;  // pages that met another page under their key
  // Pages.
  std::uint64_t pages = 0;         // that the store was made with
  std::uint64_t pages_in_use = 0;  // bound, indexed, or held by a snapshot or a step
  std::uint64_t pages_in_use_peak = 0;
  std::uint64_t evictions = 0;
  std::uint64_t own_pages = 0;           // pages that a block got because others see its old one
  std::uint64_t no_page = 0;             // claims and copies that found no page
  std::uint64_t bytes = 0;               // reserved: pages, stamps, tables
  std::uint64_t bytes_touched_peak = 0;  // of the pages: the most that was ever in use
  // Audit.
  std::uint64_t audited_rows = 0;         // ignored writes that were compared
  std::uint64_t audit_disagreements = 0;  // of them: not the same set in every layer
  std::uint64_t audit_voided_pages = 0;
  std::uint64_t audit_voided_rows = 0;
  double audit_agreement_sum = 0;  // mean agreement = sum / audited_rows
  // Snapshots.
  std::uint64_t snapshots_taken = 0;
  std::uint64_t snapshots_live = 0;
  // Submit to landed.
  LatencyHistogram landing_lag;
  // Per version, newest last; empty unless StoreOptions::count_experts.
  std::vector<ExpertCounts> experts;

  // The counters a person asks for first, a line each.
  [[nodiscard]] std::string ToString() const;
};

// What the audit found: later writes of `block` contradicted the rows that were kept.
struct AuditFinding {
  std::int32_t block = -1;        // the block that was written again; -1: found between two pages
  std::uint64_t step = 0;         // the step whose write disagreed
  std::uint64_t kept_step = 0;    // the step that wrote the rows kept until then
  std::uint64_t sealed_step = 0;  // the step that the page was sealed with
  std::uint32_t rows = 0;         // rows compared
  double agreement = 0;           // mean share of common ids, in [0, 1]
  bool voided = false;            // agreement was under the threshold: the page's rows were voided

  // Names the event that the engine must have missed. Allocates.
  [[nodiscard]] std::string ToString() const;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STATS_H_
