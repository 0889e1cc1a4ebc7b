// Audit: compares rows that should be equal and voids pages that cannot be trusted; "Audit" in
// docs/internals/architecture.md. Internal to blockstore.
//
// Landing thread, except TakeFindings. It locks the store's mutex itself, never while it compares.
#ifndef WAYMARK_BLOCKSTORE_STORE_AUDIT_H_
#define WAYMARK_BLOCKSTORE_STORE_AUDIT_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/mutex.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/step_ids.h"

namespace waymark {

// A row of a step whose write was ignored, and the row that was kept.
struct IgnoredRow {
  std::uint32_t step_row = 0;  // of the step
  PageIndex page = kNoPage;
  EntryIndex entry = kNoEntry;
  std::uint16_t row = 0;  // of the page
  bool asked = true;
};

class Audit {
 public:
  // The references must outlive the object. `mutex` guards the others.
  Audit(const StoreOptions& options, const StoreCore& core, Mutex& mutex, Pages& pages,
        Stats& stats);

  // Compares every write of the step that rule 5 ignored with the row that was kept, page by page:
  // the layers that were written, also of rows that did not ask.
  void CompareIgnored(std::uint64_t step, StepIds& ids, std::span<const IgnoredRow> ignored);
  // Voids the pages of which CompareIgnored found that they cannot be trusted, and counts. Called
  // when the step ends, so that a flight has the voided rows right behind the step that landed.
  void Conclude() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Logs what Conclude found: the first finding of a cause, and later ones ever more rarely.
  void LogFindings() ABSL_LOCKS_EXCLUDED(mutex_);
  // Compares the pages that were sealed with one key, pair by pair, and unpins them. False if there
  // were none.
  bool ComparePairs() ABSL_LOCKS_EXCLUDED(mutex_);
  // false: findings void no page. For a replay, whose flight has the voided pages.
  void SetVoids(bool voids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { voids_ = voids; }
  // Makes a row of a page (-1: all), if valid, missing (audit); returns the number of these rows.
  std::uint32_t VoidRows(PageIndex page, std::int32_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The findings that voided rows, each returned once. Those beyond 256 are counted in the last of
  // their cause. Any thread.
  std::vector<AuditFinding> TakeFindings() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The sums of some compared rows.
  struct Sums {
    std::uint32_t rows = 0;
    double agreement = 0;
    std::uint64_t disagreements = 0;
    void Add(double row_agreement);
  };
  // The rows of a page that were compared.
  struct Compared {
    Sums all;
    Sums others;                     // of these: those that differ in more than ties explain
    std::vector<std::int32_t> rows;  // which those are; {-1}: the page is voided
  };
  // What was found of a page, or of two with one key.
  struct Judged {
    AuditFinding finding;
    Compared compared;
    PageIndex first = kNoPage;
    PageIndex second = kNoPage;
  };
  void ComparePair(const SecondSeal& pair) ABSL_LOCKS_EXCLUDED(mutex_);
  // Compares the ids of an ignored row; false if none of its layers was written.
  [[nodiscard]] bool CompareRow(StepIds& ids, const IgnoredRow& ignored, Compared& compared);
  // Compares row `row` of a page with what was written (`written`: in these layers; empty: all).
  void Compare(const std::uint8_t* kept, const std::uint8_t* ids,
               std::span<const std::uint8_t> written, std::uint32_t row, Compared& compared) const;
  // Sets rows, agreement and voided of the finding: of the page, else of the rows that are voided.
  void Judge(Compared& compared, AuditFinding& finding) const;
  // Counts the finding and, if its pages cannot be trusted, keeps it and voids them.
  void Record(const Judged& judged) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Voids the rows, and reports it to the flight.
  void Void(PageIndex page, std::span<const std::int32_t> rows)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Logs the 1st, 10th, 100th, ... finding of each cause.
  void Log(const AuditFinding& finding);

  const StoreOptions& options_;
  const StoreCore& core_;
  const double threshold_;
  const std::uint32_t pages_per_block_;
  Mutex& mutex_;
  Pages& pages_ ABSL_GUARDED_BY(mutex_);
  Stats& stats_ ABSL_GUARDED_BY(mutex_);
  std::vector<AuditFinding> findings_ ABSL_GUARDED_BY(mutex_);
  bool voids_ ABSL_GUARDED_BY(mutex_) = true;
  std::array<std::uint64_t, 2> logged_{};    // findings of each cause so far
  std::vector<Judged> judged_;               // of the step that is written
  std::vector<std::uint8_t> row_, written_;  // scratch of CompareRow
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_AUDIT_H_
