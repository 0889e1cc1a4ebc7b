// Flight format: the bytes of a recorded flight. Internal to blockstore; docs/flight.md is the
// contract.
//
// A flight is a head (magic, version, what the store was made with) and records. Every heading and
// every payload has its own checksum, and every length is checked before it is used. Little-endian.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_FORMAT_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "blockstore/byte_io.h"
#include "blockstore/flight/info.h"
#include "blockstore/shape.h"

namespace waymark::flight {

inline constexpr char kMagic[8] = {'W', 'M', 'F', 'L', 'I', 'G', 'H', 'T'};
inline constexpr std::uint16_t kFormatVersion = 1;
// No record is longer; a reader refuses one that says so.
inline constexpr std::size_t kMaxPayload = std::size_t{1} << 30;

enum class Kind : std::uint16_t {
  kInfo = 1,    // only right after the magic
  kCheckpoint,  // only the first record: the state that the flight begins with
  kBegin,
  kEnd,
  kLanded,
  kSnapshot,
  kReleased,
  kRead,
  kClose,  // the last record of a flight that was closed
};

// Flags of a heading. Bits that its kind does not name are 0; the kInfo record has the format's
// version there.
inline constexpr std::uint16_t kFlagDropped = 1;   // kBegin: the store dropped the step at once
inline constexpr std::uint16_t kFlagMore = 1;      // kLanded: more rows of the step follow
inline constexpr std::uint16_t kFlagSlots = 4;     // kLanded: each row says its slot
inline constexpr std::uint16_t kFlagVerdicts = 2;  // kLanded: not all rows are there

// What stands before each payload.
struct Heading {
  std::uint32_t size = 0;  // bytes of the payload
  std::uint16_t kind = 0;
  std::uint16_t flags = 0;
  std::uint32_t payload_check = 0;  // low half of the payload's XXH3-64
  std::uint32_t heading_check = 0;  // low half of the XXH3-64 of the 12 bytes before
};
static_assert(sizeof(Heading) == 16);

// The heading of a record with this payload, both checksums set. REQUIRES: payload.size() <=
// kMaxPayload.
[[nodiscard]] Heading MakeHeading(Kind kind, std::uint16_t flags,
                                  std::span<const std::uint8_t> payload);
// Whether the heading is as it was written. Until it is, its size means nothing.
[[nodiscard]] bool HeadingIntact(const Heading& heading);
// Whether the payload has the heading's size and checksum.
[[nodiscard]] bool PayloadIntact(const Heading& heading, std::span<const std::uint8_t> payload);

// Bytes of one row of a kLanded record: shape.row_bytes() (kIds), or kDigestRowBytes.
[[nodiscard]] std::size_t RecordedRowBytes(const FlightInfo& info);

// A row in 16 bytes: its XXH3-64, then eight sketch bytes. Two rows that share a share s of their
// ids share about s / (2 - s) of their sketch bytes: byte j is the least of a hash of the ids of
// layer j * L / 8. So the audit can tell a mild disagreement from another token without the ids.
inline constexpr std::size_t kDigestRowBytes = 16;
inline constexpr std::size_t kSketchBytes = 8;
// `row`: shape.row_bytes() bytes, packed. Writes kDigestRowBytes bytes to `out`.
void DigestRow(const RoutingShape& shape, const std::uint8_t* row, std::uint8_t* out);

// The rows of a store that replays a flight of digests: 16 layers of one id below 256.
[[nodiscard]] RoutingShape DigestShape(const RoutingShape& shape);

// The payload of the kInfo record, and back. InvalidArgument naming what is wrong; any bytes are
// safe.
[[nodiscard]] std::string EncodeInfo(const FlightInfo& info);
[[nodiscard]] absl::StatusOr<FlightInfo> DecodeInfo(std::span<const std::uint8_t> payload);
// Magic and kInfo record.
[[nodiscard]] std::string EncodeHead(const FlightInfo& info);

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_FORMAT_H_
