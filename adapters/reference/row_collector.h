// RowCollector: the readers' side of the embedded engine. It holds the snapshots of preempted and
// finished requests until they can be read, joins those of one request in the order in which they
// were taken, and returns the finished requests with their rows.
//
// Snapshots pin pages, so they are read and released as soon as they are ready, not when their
// request is done. Not thread-safe: the engine's thread.
#ifndef WAYMARK_ADAPTERS_REFERENCE_ROW_COLLECTOR_H_
#define WAYMARK_ADAPTERS_REFERENCE_ROW_COLLECTOR_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "adapters/reference/request.h"
#include "blockstore/store/snapshot.h"

namespace waymark::reference {

class RowCollector {
 public:
  // A snapshot of rows of request `id` that the store will lose: a preemption, a change of weights.
  void AddPart(uint64_t id, Snapshot snapshot);
  // The last snapshot of `request`, whose `rows` are set before Take returns it.
  void AddLast(FinishedRequest request, Snapshot snapshot);
  // A request that did not ask for its rows: Take returns it as it is.
  void AddWithoutRows(FinishedRequest request);

  // Reads what is ready. Errors: those of Snapshot::ReadRows and Join.
  [[nodiscard]] absl::Status Poll();
  // Reads everything, waiting for landing. DeadlineExceeded when a snapshot is not ready after
  // `timeout`.
  [[nodiscard]] absl::Status Drain(std::chrono::nanoseconds timeout);
  // The requests finished since the last call whose rows have been read, in that order.
  [[nodiscard]] std::vector<FinishedRequest> Take();

 private:
  struct Entry {
    std::deque<Snapshot> snapshots;  // taken and not read yet, oldest first
    Rows joined;
    bool any = false;   // joined holds something
    bool last = false;  // `request` is set, and nothing comes after `snapshots`
    FinishedRequest request;
  };

  absl::Status ReadFront(Entry& entry);

  std::map<uint64_t, Entry> entries_;
  std::vector<FinishedRequest> done_;
};

}  // namespace waymark::reference

#endif  // WAYMARK_ADAPTERS_REFERENCE_ROW_COLLECTOR_H_
