// FlightWriter: records a whole flight, without bound, to a file or to memory.
//
// For tools and tests: a write may wait for the disk, under the store's lock. What an engine keeps
// switched on is FlightRecorder (recorder.h), which holds the last of a flight in fixed
// memory.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_WRITER_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/flight/info.h"
#include "blockstore/store/flight_sink.h"

namespace waymark {

// Any thread may call the sink; the rest is for one thread.
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
  // Creates or empties the file. InvalidArgument naming path and system error.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FlightWriter>> Open(const std::string& path,
                                                                          const FlightInfo& info);
  // Records into memory: bytes().
  [[nodiscard]] static std::unique_ptr<FlightWriter> InMemory(const FlightInfo& info);
  ~FlightWriter();  // closes
  FlightWriter(const FlightWriter&) = delete;
  FlightWriter& operator=(const FlightWriter&) = delete;

  // What a store is given. Owned by the writer, which outlives that store. A call may wait for the
  // disk.
  [[nodiscard]] FlightSink* sink();
  // Writes the closing record and what is buffered; later calls of the sink are ignored. Unknown
  // naming the system error, when any write failed; the same again when called again.
  [[nodiscard]] absl::Status Close();
  // InMemory: everything written so far. REQUIRES: made by InMemory, no call of the sink running.
  [[nodiscard]] const std::string& bytes() const;
  // Size of the flight so far.
  [[nodiscard]] std::uint64_t size() const;

 private:
  struct State;
  explicit FlightWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_WRITER_H_
