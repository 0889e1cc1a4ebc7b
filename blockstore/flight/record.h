// FlightRecord: one parsed record of a flight. FlightRecordKind (store/flight_sink.h) says what
// each kind means, and docs/flight.md defines the bytes.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_RECORD_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "blockstore/flight/info.h"
#include "blockstore/store/flight_sink.h"

namespace waymark {

template <class T>
using FlightVector = std::vector<T>;

// Owns its items. Reuse one object for many records, to reuse its memory.
struct FlightRecord : FlightFields<FlightVector> {
  std::uint64_t offset = 0;  // byte offset of the record's heading in the file

  // The record as it was reported. Valid while the record is not changed.
  [[nodiscard]] FlightEntry entry() const;
};

namespace flight {

struct Heading;  // flight/format.h

// Bytes of the record of this entry, its heading included. Its events are encoded, in `bytes`.
[[nodiscard]] std::size_t RecordBytes(const FlightEntry& entry);
// Writes them to `at`. REQUIRES: the payload has at most kMaxPayload bytes.
void WriteRecord(const FlightEntry& entry, std::uint8_t* at);
// Appends them to `out`.
void AppendRecord(const FlightEntry& entry, std::string& out);

// Fills `record`, but for its offset, from the payload of the record with this heading; compares no
// checksums. `info`, from the flight's head, gives the width of rows and the most rows of a step.
// Any bytes are safe, and take no more memory than 16 times their size. InvalidArgument naming
// what the format does not allow; `record` is then unspecified.
[[nodiscard]] absl::Status DecodeRecord(const Heading& heading,
                                        std::span<const std::uint8_t> payload,
                                        const FlightInfo& info, FlightRecord& record);

}  // namespace flight
}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_RECORD_H_
