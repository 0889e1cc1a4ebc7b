// Flight format: the bytes of a recorded flight. Internal to blockstore; docs/flight.md is the
// contract.
//
// A flight is a head (magic, version, what the store was made with) and records. Every heading and
// every payload has its own checksum, and every length is checked before it is used. Little-endian.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_FORMAT_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_FORMAT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "blockstore/flight_info.h"
#include "blockstore/shape.h"

namespace waymark::flight {

static_assert(std::endian::native == std::endian::little, "flights are written as memory lies");

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

// Appends plain values to a string that the caller owns; it grows as strings do.
class ByteWriter {
 public:
  explicit ByteWriter(std::string& out) : out_(out) {}
  template <class T>
  void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    out_.append(raw, sizeof(T));
  }
  void PutBytes(const void* data, std::size_t size) {
    if (size > 0) out_.append(static_cast<const char*>(data), size);
  }

 private:
  std::string& out_;
};

// Takes plain values from the front; past the end it gives zeros and ok() is false for good.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  template <class T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (const std::uint8_t* at = Take(sizeof(T))) std::memcpy(&value, at, sizeof(T));
    return value;
  }
  // The next `count` items of `item_bytes` each, in the bytes that the reader was given; null (and
  // not ok) when there are fewer. Never multiplies a count it has not checked.
  const std::uint8_t* Take(std::size_t count, std::size_t item_bytes = 1) {
    if (!ok_ || (item_bytes != 0 && count > bytes_.size() / item_bytes)) {
      ok_ = false;
      return nullptr;
    }
    const std::uint8_t* at = bytes_.data();
    bytes_ = bytes_.subspan(count * item_bytes);
    return at;
  }
  // Nothing was asked for that is not there.
  [[nodiscard]] bool ok() const { return ok_; }
  // Everything was taken, and nothing more.
  [[nodiscard]] bool done() const { return ok_ && bytes_.empty(); }
  // Bytes not taken yet; left() of them in rest().
  [[nodiscard]] std::size_t left() const { return bytes_.size(); }
  [[nodiscard]] std::span<const std::uint8_t>& rest() { return bytes_; }

 private:
  std::span<const std::uint8_t> bytes_;
  bool ok_ = true;
};

// Writes plain values into memory that is known to be large enough: the caller has worked out the
// record's size before. No alignment is needed.
class RawWriter {
 public:
  explicit RawWriter(std::uint8_t* at) : at_(at) {}
  template <class T>
  void Put(T value) {
    std::memcpy(at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  void PutBytes(const void* data, std::size_t size) {
    if (size > 0) std::memcpy(at_, data, size);
    at_ += size;
  }
  // The next `size` bytes, to be filled by the caller.
  [[nodiscard]] std::uint8_t* Skip(std::size_t size) {
    std::uint8_t* at = at_;
    at_ += size;
    return at;
  }

 private:
  std::uint8_t* at_;
};

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_FORMAT_H_
