// The flight format: the bytes of a recorded flight. Internal to blockstore.
// docs/internals/flight.md defines the bytes.
//
// A flight is a head (magic bytes, format version, the options of the store) and then records.
// Every heading and every payload has its own checksum, and every length is checked before it is
// used. Little-endian.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_FORMAT_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/flight/record.h"
#include "blockstore/shape.h"

namespace waymark::flight {

inline constexpr char kMagic[8] = {'W', 'M', 'F', 'L', 'I', 'G', 'H', 'T'};
inline constexpr std::uint16_t kFormatVersion = 9;
// The most bytes of a payload; readers refuse a longer one.
inline constexpr std::size_t kMaxPayload = std::size_t{1} << 30;

// Precedes each payload.
struct Heading {
  std::uint32_t size = 0;           // bytes of the payload
  std::uint16_t kind = 0;           // a FlightRecordKind
  std::uint16_t flags = 0;          // of the kInfo record the format version, else 0
  std::uint32_t payload_check = 0;  // low half of the payload's XXH3-64
  std::uint32_t heading_check = 0;  // low half of the XXH3-64 of the 12 bytes before
};
static_assert(sizeof(Heading) == 16);

// The heading of a record with this payload, with both checksums.
// REQUIRES: payload.size() <= kMaxPayload.
[[nodiscard]] Heading MakeHeading(FlightRecordKind kind, std::uint16_t flags,
                                  std::span<const std::uint8_t> payload);
// Takes the first record from `bytes`. False: they end inside it. InvalidArgument saying what is
// damaged: a checksum, or the length.
[[nodiscard]] absl::StatusOr<bool> TakeRecord(std::span<const std::uint8_t>& bytes,
                                              Heading& heading,
                                              std::span<const std::uint8_t>& payload);
[[nodiscard]] inline std::span<const std::uint8_t> BytesOf(const std::string& bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

// Bytes of one row of a kLanded record: shape.row_bytes() with FlightRows::kIds, kDigestRowBytes
// with kDigests.
[[nodiscard]] std::size_t RecordedRowBytes(const FlightInfo& info);

// A row in 16 bytes: its XXH3-64, then eight sketch bytes. Sketch byte j is the low byte of the
// minimum of a hash over the ids of layer j * L / 8 (MinHash). If two rows have a share s of their
// ids in common, about s / (2 - s) of their sketch bytes are equal (the Jaccard similarity of the
// id sets). So the audit can distinguish a mild disagreement from another token without the ids.
inline constexpr std::size_t kDigestRowBytes = 16;
inline constexpr std::size_t kSketchBytes = 8;
// Writes the kDigestRowBytes bytes of `row`, which has shape.row_bytes() bytes, to `out`.
void DigestRow(const RoutingShape& shape, const std::uint8_t* row, std::uint8_t* out);

// The shape of a store that replays a flight of digests: its rows are the 16 bytes above, as 16
// layers of one id below 256.
[[nodiscard]] RoutingShape DigestShape(const RoutingShape& shape);

// The head of a flight: the magic bytes and the kInfo record.
[[nodiscard]] std::string EncodeHead(const FlightInfo& info);
// Parses the payload of the kInfo record; any bytes are safe. InvalidArgument naming what is wrong.
[[nodiscard]] absl::StatusOr<FlightInfo> DecodeInfo(std::span<const std::uint8_t> payload);

// Bytes of the record of this entry, its heading included. Its events are encoded, in `bytes`.
[[nodiscard]] std::size_t RecordBytes(const FlightEntry& entry);
// Writes them to `at`. REQUIRES: the payload has at most kMaxPayload bytes.
void WriteRecord(const FlightEntry& entry, std::uint8_t* at);
// Appends them to `out`.
void AppendRecord(const FlightEntry& entry, std::string& out);

// Fills `record`, except its offset, from the payload of the record with this heading; compares no
// checksums. `info`, from the flight's head, gives the width of rows and the most rows of a step.
// Any bytes are safe, and take no more memory than 16 times their size. InvalidArgument naming
// what the format does not allow; `record` is then unspecified.
[[nodiscard]] absl::Status DecodeRecord(const Heading& heading,
                                        std::span<const std::uint8_t> payload,
                                        const FlightInfo& info, FlightRecord& record);

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_FORMAT_H_
