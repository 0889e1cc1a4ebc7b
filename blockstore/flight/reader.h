// FlightReader: reads a recorded flight, record by record. Safe on any bytes.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_READER_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_READER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/flight/info.h"
#include "blockstore/flight/record.h"

namespace waymark {

// Movable; one thread. Holds one record's bytes at a time: files may be larger than memory.
class FlightReader {
 public:
  // Opens a file and reads its head. NotFound naming path and system error; InvalidArgument when it
  // is no flight, of another format version, or its head is damaged.
  [[nodiscard]] static absl::StatusOr<FlightReader> Open(const std::string& path);
  // The same for bytes in memory; copies them.
  [[nodiscard]] static absl::StatusOr<FlightReader> FromBytes(std::string bytes);
  ~FlightReader();
  FlightReader(FlightReader&&) noexcept;
  FlightReader& operator=(FlightReader&&) noexcept;

  [[nodiscard]] const FlightInfo& info() const;
  // Fills `record` with the next record; false at the end. DataLoss naming the offset for anything
  // that was changed after it was written. A record that is cut off by the end of the file is the
  // end, and truncated() says so.
  [[nodiscard]] absl::StatusOr<bool> Next(FlightRecord& record);
  // Back to the first record.
  [[nodiscard]] absl::Status Rewind();

  // Whether the file ended inside a record, or without the closing record (Next has returned
  // false).
  [[nodiscard]] bool truncated() const;
  // Records that Next has given since the start.
  [[nodiscard]] std::uint64_t records() const;

 private:
  struct State;
  explicit FlightReader(std::unique_ptr<State> state);
  [[nodiscard]] static absl::StatusOr<FlightReader> Begin(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_READER_H_
