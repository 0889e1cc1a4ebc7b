// FlightRecorder: keeps the latest part of a flight in fixed memory, ready to be dumped.
//
// Records go into a ring of segments. Before the oldest segment is overwritten, a small store that
// the recorder owns replays it; the state of that store is the checkpoint with which a dump begins.
// So a dump does not lock the engine's store; it blocks the sink only while it copies the segment
// that is being written.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_RECORDER_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/flight/record.h"
#include "blockstore/log.h"
#include "blockstore/store/flight_sink.h"

namespace waymark {

struct RecorderOptions {
  // Bytes of the ring, at least 32 KiB. At least half of it is history; the rest lets the thread
  // lag behind. Every record, so the batch of every step, must fit an eighth of it.
  std::size_t ring_bytes = std::size_t{64} << 20;
  // With kIds the same ring covers less time, and the recorder's own store is as large as the
  // engine's.
  FlightRows rows = FlightRows::kDigests;
  // Whether a thread replays old segments. If not, the caller calls ReplayOldest() often enough.
  bool background = true;
  // CPUs that the thread ("wm-flight") may run on; empty: as StoreOptions::landing_cpus.
  std::vector<std::int32_t> cpus = {};
  // Receives once, on the thread, why recording has stopped (error). Null: the store's.
  LogCallback log = {};
};

// Any thread may call it. Nothing throws: an exception, as a rule because of no memory, ends the
// recording, and the engine's store goes on.
class FlightRecorder {
 public:
  // Makes the recorder of a store that will be made with `options`. Allocates the ring and the
  // recorder's own store, which has 16 bytes per row with kDigests. InvalidArgument for a ring that
  // is too small and for CPUs that may not be used; ResourceExhausted if there is no memory, or no
  // thread; errors of RoutingStore::Create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FlightRecorder>> Create(
      const StoreOptions& options, const RecorderOptions& recorder = {});
  // Any thread, also its own (in its log callback). In a forked child it does nothing.
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // The sink for StoreOptions::flight. Behind the recorder's end it records until the ring is full.
  // No call of it allocates; each blocks only for the encoder's lock, as a dump does (above).
  [[nodiscard]] std::shared_ptr<FlightSink> sink();

  // Writes the contents of the ring as a flight (docs/internals/flight.md) to a file. Recording
  // goes on. Any thread; concurrent dumps run one after another. Unknown naming path and system's
  // message if the file cannot be written; DataLoss if the recorder's own store could not replay
  // the records, ResourceExhausted if it had no memory for that, or there is none for the dump;
  // OutOfRange if the checkpoint exceeds 1 GiB; FailedPrecondition in a forked child.
  [[nodiscard]] absl::Status Dump(const std::string& path);
  // Appends the same flight to `out`; nothing on an error.
  [[nodiscard]] absl::Status DumpTo(std::string& out);

  // Replays the oldest segments to make room in the ring. Only needed without `background`.
  // Errors as Dump.
  [[nodiscard]] absl::Status ReplayOldest();
  // Why recording has stopped, for people; empty while it goes on. After a stop for want of room, a
  // dump contains what was recorded before it. In a forked child: that this is one.
  [[nodiscard]] std::string stopped() const;

 private:
  struct State;
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FlightRecorder>> Make(
      const StoreOptions& options, const RecorderOptions& recorder);
  [[nodiscard]] absl::Status DumpRing(std::string& out);
  explicit FlightRecorder(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_RECORDER_H_
