#include "adapters/reference/row_collector.h"

#include <utility>

#include "absl/status/statusor.h"

namespace waymark::reference {

void RowCollector::AddPart(uint64_t id, Snapshot snapshot) {
  entries_[id].snapshots.push_back(std::move(snapshot));
}

void RowCollector::AddLast(FinishedRequest request, Snapshot snapshot) {
  Entry& entry = entries_[request.id];
  entry.snapshots.push_back(std::move(snapshot));
  entry.last = true;
  entry.request = std::move(request);
}

void RowCollector::AddWithoutRows(FinishedRequest request) {
  done_.push_back(std::move(request));
}

absl::Status RowCollector::ReadFront(Entry& entry) {
  absl::StatusOr<Rows> rows = entry.snapshots.front().ReadRows();
  if (!rows.ok()) return rows.status();
  entry.snapshots.pop_front();
  if (entry.any) {
    // The earlier snapshot first: its rows are the ones that the request's tokens were sampled
    // with.
    const Rows* const lives[] = {&entry.joined, &*rows};
    rows = Join(lives);
    if (!rows.ok()) return rows.status();
  }
  entry.joined = *std::move(rows);
  entry.any = true;
  return absl::OkStatus();
}

absl::Status RowCollector::Poll() {
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    while (!entry.snapshots.empty() && entry.snapshots.front().Ready()) {
      if (absl::Status status = ReadFront(entry); !status.ok()) return status;
    }
    if (!entry.last || !entry.snapshots.empty()) {
      ++it;
      continue;
    }
    entry.request.rows = std::move(entry.joined);
    done_.push_back(std::move(entry.request));
    it = entries_.erase(it);
  }
  return absl::OkStatus();
}

absl::Status RowCollector::Drain(std::chrono::nanoseconds timeout) {
  for (auto& [id, entry] : entries_) {
    for (const Snapshot& snapshot : entry.snapshots) {
      if (absl::Status status = snapshot.Wait(timeout); !status.ok()) return status;
    }
  }
  return Poll();
}

std::vector<FinishedRequest> RowCollector::Take() {
  return std::exchange(done_, {});
}

}  // namespace waymark::reference
