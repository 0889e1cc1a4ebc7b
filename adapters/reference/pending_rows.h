// PendingRows: the readers' side of the embedded engine. It holds the snapshots of one request,
// taken when it was preempted and when it finished, until they can be read, and joins their rows in
// the order in which they were taken: the earlier rows are those that the tokens were sampled with.
//
// Snapshots pin pages, so they are read and released as soon as they are ready, not when the
// request is done. Not thread-safe: the engine's thread.
#ifndef WAYMARK_ADAPTERS_REFERENCE_PENDING_ROWS_H_
#define WAYMARK_ADAPTERS_REFERENCE_PENDING_ROWS_H_

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "blockstore/store/snapshot.h"

namespace waymark::reference {

class PendingRows {
 public:
  void Add(Snapshot snapshot) { snapshots_.push_back(std::move(snapshot)); }

  // Reads what is ready. Errors: those of Snapshot::ReadRows and Join.
  [[nodiscard]] absl::Status Poll() {
    while (!snapshots_.empty() && snapshots_.front().Ready()) {
      absl::StatusOr<Rows> rows = snapshots_.front().ReadRows();
      snapshots_.pop_front();
      if (rows.ok() && joined_) {
        const Rows* const lives[] = {&*joined_, &*rows};
        rows = Join(lives);
      }
      if (!rows.ok()) return rows.status();
      joined_ = *std::move(rows);
    }
    return absl::OkStatus();
  }
  // Reads everything, waiting for landing. DeadlineExceeded when a snapshot is not ready after
  // `timeout`.
  [[nodiscard]] absl::Status Drain(std::chrono::nanoseconds timeout) {
    for (const Snapshot& snapshot : snapshots_) {
      if (absl::Status status = snapshot.Wait(timeout); !status.ok()) return status;
    }
    return Poll();
  }

  // Whether everything has been read.
  [[nodiscard]] bool done() const { return snapshots_.empty(); }
  // The rows. REQUIRES: done(). Once.
  [[nodiscard]] Rows Take() { return joined_ ? *std::move(joined_) : Rows(); }

 private:
  std::deque<Snapshot> snapshots_;  // taken and not read yet, oldest first
  std::optional<Rows> joined_;
};

}  // namespace waymark::reference

#endif  // WAYMARK_ADAPTERS_REFERENCE_PENDING_ROWS_H_
