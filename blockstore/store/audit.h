// Audit: compares rows that should be equal and voids pages that cannot be trusted; "Audit" in
// docs/architecture.md. Internal to blockstore.
//
// Landing thread, but for TakeFindings. It locks the store's mutex itself, never while it compares.
#ifndef WAYMARK_BLOCKSTORE_STORE_AUDIT_H_
#define WAYMARK_BLOCKSTORE_STORE_AUDIT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "blockstore/mutex.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/steps.h"

namespace waymark {

class Audit {
 public:
  // The references must outlive the object. `mutex` guards the others.
  Audit(const StoreOptions& options, const StoreCore& core, Mutex& mutex, Pages& pages,
        Steps& steps, Stats& stats);

  // Compares every write of the step that rule 3 ignored with the row that was kept, page by page:
  // the layers that were written, also of rows that did not ask.
  // REQUIRES: the step's `rows` are not null, and no page copy is queued.
  void CompareIgnored(StepRecord& record);
  // Voids the pages of which CompareIgnored found that they cannot be trusted, and counts. Called
  // when the step ends, so that a flight has the voided rows right behind the step that landed.
  void Conclude() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Logs what Conclude found: the first finding of a cause, and later ones ever more rarely.
  void LogFindings() ABSL_LOCKS_EXCLUDED(mutex_);
  // Two pages that were sealed with one key, and the base of their stamps.
  struct Pair {
    SecondSeal pages;
    std::shared_ptr<const StepBase> base;
  };
  // Takes a pair that is to be compared; nullopt if there is none now.
  std::optional<Pair> TakePair() ABSL_LOCKS_EXCLUDED(mutex_);
  // Compares their rows, and unpins the pages. REQUIRES: no page copy of before TakePair is queued.
  void ComparePair(const Pair& pair) ABSL_LOCKS_EXCLUDED(mutex_);
  // false: findings void no page. For a replay, whose flight has the voided pages.
  void SetVoids(bool voids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { voids_ = voids; }
  // Makes the valid rows of a page missing (audit); returns their number.
  std::uint32_t VoidPage(PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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
  // What was found of a page, or of two with one key.
  struct Judged {
    AuditFinding finding;
    Sums sums;
    PageIndex first = kNoPage;
    PageIndex second = kNoPage;
  };
  // Adds the agreement of an ignored row; false if none of its layers was written.
  [[nodiscard]] bool CompareRow(StepRecord& record, const SideRow& ignored, Sums& sums);
  // Sets rows, agreement and voided of the finding.
  void Judge(const Sums& sums, AuditFinding& finding) const;
  // Counts the finding and, if its pages cannot be trusted, keeps it and voids them.
  void Record(const Judged& judged) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Voids the page, and reports it to the flight.
  void Void(PageIndex page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Logs the 1st, 10th, 100th, ... finding of each cause.
  void Log(const AuditFinding& finding);

  const StoreOptions& options_;
  const StoreCore& core_;
  const double threshold_;
  const std::uint32_t pages_per_block_;
  Mutex& mutex_;
  Pages& pages_ ABSL_GUARDED_BY(mutex_);
  Steps& steps_ ABSL_GUARDED_BY(mutex_);
  Stats& stats_ ABSL_GUARDED_BY(mutex_);
  std::vector<AuditFinding> findings_ ABSL_GUARDED_BY(mutex_);
  bool voids_ ABSL_GUARDED_BY(mutex_) = true;
  std::array<std::uint64_t, 2> logged_{};    // findings of each cause so far
  std::vector<Judged> judged_;               // of the step that lands
  std::vector<std::uint8_t> row_, written_;  // scratch of CompareRow
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_AUDIT_H_
