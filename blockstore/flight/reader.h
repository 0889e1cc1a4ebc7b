// FlightReader: reads a recorded flight, record by record. Any bytes are safe.
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

// Movable; not thread safe. Holds the bytes of one record at a time, so a file may be larger than
// memory.
class FlightReader {
 public:
  // Opens a file and reads its head. NotFound naming the path and the system's message if it cannot
  // be opened; InvalidArgument if it is not a plain file or not a flight, has another format
  // version, or its head is damaged.
  [[nodiscard]] static absl::StatusOr<FlightReader> Open(const std::string& path);
  // Reads a flight from bytes in memory, which the reader owns. Errors as Open.
  [[nodiscard]] static absl::StatusOr<FlightReader> FromBytes(std::string bytes);
  ~FlightReader();
  FlightReader(FlightReader&&) noexcept;
  FlightReader& operator=(FlightReader&&) noexcept;

  [[nodiscard]] const FlightInfo& info() const;
  // Fills `record` with the next record and returns true; returns false at the end of the flight,
  // which is also where a record is cut off by the end of the file. DataLoss naming the offset if
  // bytes are damaged or are not a record.
  [[nodiscard]] absl::StatusOr<bool> Next(FlightRecord& record);
  // Goes back to the first record. DataLoss if the file cannot be positioned.
  [[nodiscard]] absl::Status Rewind();

  // After Next has returned false: whether the file ends inside a record or without the closing
  // record.
  [[nodiscard]] bool truncated() const;
  // The number of records that Next has returned since the first.
  [[nodiscard]] std::uint64_t records() const;

 private:
  struct State;
  explicit FlightReader(std::unique_ptr<State> state);
  [[nodiscard]] static absl::StatusOr<FlightReader> Begin(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_READER_H_
