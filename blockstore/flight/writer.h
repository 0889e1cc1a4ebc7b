// FlightWriter: records a whole flight, of any length, to a file or to memory.
//
// For tools and tests: a write may block on the disk while the store's lock is held. In production
// use FlightRecorder (recorder.h), which keeps the latest part of a flight in fixed memory.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_WRITER_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/flight/record.h"
#include "blockstore/store/flight_sink.h"

namespace waymark {

// Any thread may call the sink; the other calls come from one thread.
//
// Example, with the StoreOptions of a store that is about to be made:
//
//   auto writer = FlightWriter::Open("run.flight", FlightInfo::Of(options));
//   if (!writer.ok()) return writer.status();
//   options.flight = (*writer)->sink();
//   {
//     auto store = RoutingStore::Create(options);
//     // The engine runs. The store and its snapshots are destroyed before the writer is closed.
//   }
//   absl::Status status = (*writer)->Close();
class FlightWriter {
 public:
  // Creates the file, or truncates it, and writes the head. InvalidArgument naming the path and the
  // system's message if that fails.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FlightWriter>> Open(const std::string& path,
                                                                          const FlightInfo& info);
  // Records into memory: see bytes().
  [[nodiscard]] static std::unique_ptr<FlightWriter> InMemory(const FlightInfo& info);
  ~FlightWriter();  // calls Close()
  FlightWriter(const FlightWriter&) = delete;
  FlightWriter& operator=(const FlightWriter&) = delete;

  // The sink for StoreOptions::flight. A call may block on the disk.
  [[nodiscard]] std::shared_ptr<FlightSink> sink();
  // Writes the closing record and everything buffered, and closes the file; later calls of the sink
  // are ignored. Unknown naming the path and the system's message if any write has failed. Further
  // calls return the same status.
  [[nodiscard]] absl::Status Close();
  // The flight so far. REQUIRES: made by InMemory, and no call of the sink is running.
  [[nodiscard]] const std::string& bytes() const;

 private:
  struct State;
  explicit FlightWriter(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_WRITER_H_
