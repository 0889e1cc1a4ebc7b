// FlightRecorder: keeps the last of a flight in fixed memory, ready to be dumped.
//
// The records go into a ring of segments. Before the oldest segment is written over, a small store
// of the recorder's own lives through it; what that store then knows is the checkpoint that a dump
// begins with. So the engine's store is never asked, and never waits: a dump costs it nothing but
// one short copy.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_RECORDER_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/flight/info.h"
#include "blockstore/store/flight_sink.h"

namespace waymark {

struct RecorderOptions {
  // Of the ring; at least 32 KiB. It holds three quarters of it or more. One step's batch must fit
  // an eighth of it.
  std::size_t ring_bytes = std::size_t{64} << 20;
  // kIds makes the ring that much shorter, and the recorder's own store as large as the engine's.
  FlightRows rows = FlightRows::kDigests;
  // False: no thread; the caller calls Absorb() now and then.
  bool background = true;
  // CPUs that the thread ("wm-flight") may run on; empty = it is not pinned.
  std::vector<std::int32_t> cpus = {};
};

// Any thread may call it.
class FlightRecorder {
 public:
  // For a store created with `options`. Commits the ring and the recorder's own store: 16 bytes per
  // row (kDigests). InvalidArgument for a ring that is too small and for CPUs that may not be used;
  // otherwise the errors of RoutingStore::Create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FlightRecorder>> Create(
      const StoreOptions& options, const RecorderOptions& recorder = {});
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // What a store is given. Owned by the recorder, which outlives that store. No call
  // allocates or waits.
  [[nodiscard]] FlightSink* sink();

  // Writes what the ring holds, as a flight (docs/flight.md). Any thread, one at a time; the flight
  // goes on. Unavailable while a step that began before the ring's first segment has not ended;
  // Unknown naming path and system error; DataLoss when the recorder's own store could not follow
  // the records.
  [[nodiscard]] absl::Status Dump(const std::string& path);
  // The same, appended to `out`.
  [[nodiscard]] absl::Status DumpTo(std::string& out);

  // Makes room in the ring. Only without `background`.
  [[nodiscard]] absl::Status Absorb();
  // Why the recorder stopped; empty while it records. A dump then holds what came before.
  [[nodiscard]] std::string stopped() const;

 private:
  struct State;
  explicit FlightRecorder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_RECORDER_H_
