#include "blockstore/wire/handle.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "blockstore/byte_io.h"
#include "blockstore/invalid.h"
#include "blockstore/wire/coverage.h"
#include "blockstore/wire/document_format.h"

namespace waymark::wire {
namespace {

constexpr std::array<char, 4> kMagic = {'W', 'M', 'K', 'H'};
constexpr std::uint8_t kKeyed = 1;  // flag: the handle ends with its mac

// The first 48 bytes of a handle, little-endian. docs/internals/format.md defines the fields.
struct HandleHeader {
  std::array<char, 4> magic;
  std::uint8_t major;
  std::uint8_t flags;
  std::uint16_t segments;
  std::uint32_t bytes;
  std::uint32_t crc;
  std::uint64_t rows;
  Digest128 head;
  std::uint32_t provenance_bytes;
  std::uint16_t shape_bytes;
  std::uint16_t store_bytes;
};
static_assert(sizeof(HandleHeader) == 48);

// Strict UTF-8: the shortest form of every character, no surrogates, none above U+10FFFF.
bool IsUtf8(std::string_view text) {
  constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};  // by the bytes after the lead
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<std::uint8_t>(text[i++]);
    const int ones = std::countl_one(lead);
    if (ones == 1 || ones > 4) return false;
    const std::size_t follow = ones == 0 ? 0 : static_cast<std::size_t>(ones) - 1;
    if (text.size() - i < follow) return false;
    std::uint32_t character = lead & (0x7fu >> ones);
    for (const std::size_t end = i + follow; i < end; ++i) {
      const auto byte = static_cast<std::uint8_t>(text[i]);
      if ((byte & 0xc0) != 0x80) return false;
      character = character << 6 | (byte & 0x3f);
    }
    if (character < kLeast[follow] || character > 0x10ffff || character >> 11 == 0x1b) return false;
  }
  return true;
}

// The rules that EncodeHandle and ParseHandle share.
absl::Status CheckFields(std::uint64_t rows, std::uint64_t page_tokens, const Digest128& head,
                         std::uint64_t segments, std::string_view store) {
  if (rows > static_cast<std::uint64_t>(kMostRows)) {
    return Invalid("handle: rows must be in [0, ", kMostRows, "]; they are ", rows);
  }
  if ((rows < page_tokens) != (head == Digest128{})) {
    return Invalid("handle: head must be zeros when no page of ", page_tokens,
                   " rows is complete, and only then; rows are ", rows);
  }
  const std::uint64_t behind = rows % page_tokens;
  if (segments > behind || (segments == 0) != (behind == 0)) {
    return Invalid("handle: tail segments of the ", behind,
                   " rows after the last complete page must be at most that many, and at "
                   "least 1 if there is a row; there are ",
                   segments);
  }
  if (store.size() > std::numeric_limits<std::uint16_t>::max() || !IsUtf8(store)) {
    return Invalid("handle: the store's name must be UTF-8 of fewer than 65536 bytes; it has ",
                   store.size());
  }
  return absl::OkStatus();
}

// The bytes of a handle; its crc is 0.
absl::StatusOr<std::vector<std::uint8_t>> EncodeWithoutCrc(const Handle& handle) {
  if (absl::Status status = handle.shape.Validate(); !status.ok()) return status;
  // Negative rows become numbers beyond the bound.
  if (absl::Status status = CheckFields(static_cast<std::uint64_t>(handle.rows),
                                        static_cast<std::uint64_t>(handle.shape.rows.page_tokens),
                                        handle.head, handle.tail.size(), handle.store);
      !status.ok()) {
    return status;
  }
  if (handle.provenance.size() != static_cast<std::size_t>(handle.rows)) {
    return Invalid("handle: provenance must have one entry per row, ", handle.rows, "; it has ",
                   handle.provenance.size());
  }
  for (const Provenance provenance : handle.provenance) {
    if (static_cast<int>(provenance) >= kNumProvenances) {
      return Invalid("handle: provenance must be in [0, 3]; it is ", static_cast<int>(provenance));
    }
  }
  const std::vector<std::uint8_t> shape = EncodeShapeBlock(handle.shape);
  std::vector<std::uint8_t> provenance;
  AppendProvenance(handle.provenance, provenance);
  const std::span<const Digest128> tail = handle.tail;
  std::vector<Digest128> mac;
  if (handle.mac.has_value()) mac.push_back(*handle.mac);
  const std::size_t size = sizeof(HandleHeader) + shape.size() + handle.store.size() +
                           tail.size_bytes() + provenance.size() + std::span(mac).size_bytes();
  if (size > std::numeric_limits<std::uint32_t>::max()) {
    return Invalid("handle: it must have fewer than 2^32 bytes; it has ", size);
  }
  const HandleHeader header{kMagic,
                            kMajorVersion,
                            handle.mac.has_value() ? kKeyed : std::uint8_t{0},
                            static_cast<std::uint16_t>(tail.size()),
                            static_cast<std::uint32_t>(size),
                            0,
                            static_cast<std::uint64_t>(handle.rows),
                            handle.head,
                            static_cast<std::uint32_t>(provenance.size()),
                            static_cast<std::uint16_t>(shape.size()),
                            static_cast<std::uint16_t>(handle.store.size())};
  return BytesOf(header, shape, handle.store, tail, provenance, mac);
}

}  // namespace

absl::StatusOr<std::vector<std::uint8_t>> EncodeHandle(const Handle& handle) {
  absl::StatusOr<std::vector<std::uint8_t>> bytes = EncodeWithoutCrc(handle);
  if (!bytes.ok()) return bytes;
  auto header = ByteReader(*bytes).Get<HandleHeader>();
  header.crc = CrcOf(header, std::span(*bytes).subspan(sizeof(header)));
  RawWriter(bytes->data()).Put(header);
  return bytes;
}

absl::StatusOr<Digest128> HandleMac(const Handle& handle, const DigestKey& key) {
  Handle named = handle;
  named.mac = Digest128{};
  const absl::StatusOr<std::vector<std::uint8_t>> bytes = EncodeWithoutCrc(named);
  if (!bytes.ok()) return bytes.status();
  return key.Digest(*bytes);
}

absl::StatusOr<Handle> ParseHandle(std::span<const std::uint8_t> bytes, std::int64_t max_rows) {
  ByteReader reader(bytes);
  HandleHeader header;
  if (absl::Status status = TakeHeader("handle", kMagic, reader, header); !status.ok()) {
    return status;
  }
  if ((header.flags & ~kKeyed) != 0) {
    return absl::UnimplementedError(
        absl::StrCat("handle: flags must be 0 or ", kKeyed, "; they are ", header.flags));
  }
  if (header.bytes != bytes.size()) {
    return Invalid("handle: it must have the ", header.bytes, " bytes of its header; it has ",
                   bytes.size());
  }
  if (header.crc != CrcOf(header, reader.rest())) {
    return absl::DataLossError("handle: its crc does not match");
  }
  const std::uint8_t* shape_block = reader.Take(header.shape_bytes);
  const std::uint8_t* store = reader.Take(header.store_bytes);
  const std::uint8_t* tail = reader.Take(header.segments, sizeof(Digest128));
  const std::uint8_t* provenance = reader.Take(header.provenance_bytes);
  std::optional<Digest128> mac;
  if ((header.flags & kKeyed) != 0) mac = reader.Get<Digest128>();
  if (!reader.done()) return Invalid("handle: its size must match the counts of its header");
  absl::StatusOr<WireShape> shape = DecodeShapeBlock({shape_block, header.shape_bytes});
  if (!shape.ok()) return shape.status();

  Handle handle;
  handle.shape = *std::move(shape);
  handle.store.assign(reinterpret_cast<const char*>(store), header.store_bytes);
  if (absl::Status status =
          CheckFields(header.rows, static_cast<std::uint64_t>(handle.shape.rows.page_tokens),
                      header.head, header.segments, handle.store);
      !status.ok()) {
    return status;
  }
  handle.rows = static_cast<std::int64_t>(header.rows);
  if (handle.rows > max_rows) {
    return absl::ResourceExhaustedError(absl::StrCat("handle: it must have at most max_rows, ",
                                                     max_rows, " rows; it has ", handle.rows));
  }
  handle.head = header.head;
  handle.tail.resize(header.segments);
  if (header.segments > 0)
    std::memcpy(handle.tail.data(), tail, header.segments * sizeof(Digest128));
  absl::StatusOr<std::vector<Provenance>> rows = ParseProvenance(
      {provenance, header.provenance_bytes}, handle.rows, static_cast<std::size_t>(max_rows));
  if (!rows.ok()) return rows.status();
  handle.provenance = *std::move(rows);
  handle.mac = mac;
  return handle;
}

}  // namespace waymark::wire
