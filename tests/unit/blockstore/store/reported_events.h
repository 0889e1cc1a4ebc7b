// ReportedEvents: a FlightSink that keeps the events that were reported to its store.
#ifndef WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_REPORTED_EVENTS_H_
#define WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_REPORTED_EVENTS_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "blockstore/store/flight_sink.h"

namespace waymark {

// Must outlive its store and the store's snapshots. Under Landing::kCaller events are here when the
// call that reported them returns.
class ReportedEvents : public FlightSink {
 public:
  [[nodiscard]] const std::vector<Event>& events() const { return events_; }
  // In how many calls of Report they came.
  [[nodiscard]] std::size_t reports() const { return reports_; }
  // The events since the last Take.
  [[nodiscard]] std::vector<Event> Take() {
    reports_ = 0;
    return std::exchange(events_, {});
  }

  void On(const FlightEntry& entry) override {
    if (entry.kind != FlightRecordKind::kEvents) return;
    events_.insert(events_.end(), entry.events.begin(), entry.events.end());
    ++reports_;
  }
  void OnRows(std::uint64_t, std::span<const std::uint8_t>, std::span<const Reason>) override {}

 private:
  std::vector<Event> events_;
  std::size_t reports_ = 0;
};

}  // namespace waymark

#endif  // WAYMARK_TESTS_UNIT_BLOCKSTORE_STORE_REPORTED_EVENTS_H_
