// FlightReader: reads a recorded flight, record by record. Any bytes are safe.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_READER_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "blockstore/flight/record.h"

namespace waymark {

// Movable; not thread safe. Owns the bytes of the whole flight.
class FlightReader {
 public:
  // Reads a file. NotFound naming the path and the system's message if it cannot be read;
  // InvalidArgument if it is not a flight, has another format version, or its head is damaged.
  [[nodiscard]] static absl::StatusOr<FlightReader> Open(const std::string& path);
  // Reads a flight from bytes in memory. Errors as Open.
  [[nodiscard]] static absl::StatusOr<FlightReader> FromBytes(std::string file);

  [[nodiscard]] const FlightInfo& info() const { return info_; }
  // Fills `record` with the next record and returns true; returns false at the end of the flight,
  // which is also where a record is cut off by the end of the file. DataLoss naming the offset if
  // bytes are damaged or are not a record.
  [[nodiscard]] absl::StatusOr<bool> Next(FlightRecord& record);
  // Goes back to the first record.
  void Rewind();

  // After Next has returned false: whether the file ends inside a record or without the closing
  // record.
  [[nodiscard]] bool truncated() const { return truncated_; }
  // The number of records that Next has returned since the first.
  [[nodiscard]] std::uint64_t records() const { return records_; }

 private:
  FlightReader() = default;

  std::string bytes_;
  std::size_t first_ = 0;  // where the first record begins
  std::size_t at_ = 0;     // and the next one
  std::uint64_t records_ = 0;
  bool closed_ = false;
  bool truncated_ = false;
  FlightInfo info_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_READER_H_
