// FlightDump: a flight as JSON lines, for the executable specification (model/replay.py).
#ifndef WAYMARK_TESTS_CONFORMANCE_FLIGHT_DUMP_H_
#define WAYMARK_TESTS_CONFORMANCE_FLIGHT_DUMP_H_

#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "blockstore/store/flight_sink.h"
#include "blockstore/store/store.h"

namespace waymark::conformance {

// Writes to `file` (borrowed). For stores with Landing::kCaller: all calls come from one thread.
class FlightDump : public FlightSink {
 public:
  FlightDump(std::FILE* file, std::size_t row_bytes) : file_(file), row_bytes_(row_bytes) {}

  // The first line of a flight. Before the store is made.
  void Header(const std::string& name, const StoreOptions& options);

  void On(const FlightEntry& entry) override;
  void OnRows(std::uint64_t step, std::span<const std::uint8_t> ids,
              std::span<const Reason> verdicts) override;

 private:
  void PutKeys(std::span<const BlockKey> keys);  // and begins the blocks
  void PutEvents(std::span<const Event> events);
  void PutStep(const FlightEntry& step);
  void PutVoided(const VoidedPage& page);
  void PutRead(const FlightEntry& read);

  std::FILE* file_;
  std::size_t row_bytes_;
  std::string landed_;  // rows and slots of the step that lands
  std::uint64_t key_seed_ = 0;
  std::set<std::uint64_t> versions_;      // of the flight so far
  std::map<std::string, BlockKey> keys_;  // of its seals, by their text
};

}  // namespace waymark::conformance

#endif  // WAYMARK_TESTS_CONFORMANCE_FLIGHT_DUMP_H_
