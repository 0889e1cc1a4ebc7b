// The header of a document as it is in memory, and the offsets of its chunks. Internal to
// blockstore. docs/internals/format.md defines the bytes.
#ifndef WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_FORMAT_H_
#define WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_FORMAT_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "blockstore/byte_io.h"
#include "blockstore/digest.h"
#include "blockstore/invalid.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/crc32c.h"

namespace waymark::wire {

inline constexpr std::uint8_t kDocumentMagic[8] = {0x89, 'W', 'M', 'K', '\r', '\n', 0x1a, '\n'};
inline constexpr std::uint16_t kMajorVersion = 1;
inline constexpr std::uint16_t kMinorVersion = 6;
// The bound on row positions in every wire format: positions lie in [0, kMostRows).
inline constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
inline constexpr std::size_t kHeaderAlignment = 64;

// The first 64 bytes of a document, little-endian. The sections follow, then the chunks.
struct DocumentHeader {
  std::uint8_t magic[8];
  std::uint16_t major;           // readers refuse another one
  std::uint16_t minor;           // readers accept a later one
  std::uint32_t header_bytes;    // bytes before the first chunk, a multiple of kHeaderAlignment
  std::uint32_t crc;             // crc32c of these header_bytes bytes, computed with crc = 0
  std::uint32_t zero;            // written as 0, ignored by readers
  std::uint64_t document_bytes;  // of the whole document, chunks included
  std::uint64_t first;           // rows [first, first + rows) of one sequence
  std::uint64_t rows;
  Digest128 trajectory;  // digest of the last node of the trajectory; zeros: not named
};
static_assert(sizeof(DocumentHeader) == 64 && offsetof(DocumentHeader, crc) == 16);

enum class Section : std::uint16_t { kEnd = 0, kShape, kCoverage, kSteps, kNodes, kPlaces };
// A flag of a section: a reader that does not know the section must refuse the document.
inline constexpr std::uint16_t kMustUnderstand = 1;

// Precedes the payload of each section; begins at a multiple of 8 bytes.
struct SectionHeader {
  std::uint16_t type;   // a Section; readers skip an unknown one without kMustUnderstand
  std::uint16_t flags;  // 0 or kMustUnderstand
  std::uint32_t bytes;  // bytes of the payload, without the padding to a multiple of 8
};
static_assert(sizeof(SectionHeader) == 8);

// The crc of `header`, taken with 0 in its field crc, and of the bytes behind it.
template <class Header>
[[nodiscard]] std::uint32_t CrcOf(Header header, std::span<const std::uint8_t> behind) {
  header.crc = 0;
  std::array<std::uint8_t, sizeof(header)> front;
  std::memcpy(front.data(), &header, sizeof(header));
  return ExtendCrc32c(Crc32c(front), behind);
}

// Takes the header of a node, a node list, a tail segment or a handle, `what`, from the front of
// its bytes. InvalidArgument unless they begin with `magic`; Unimplemented for another major
// version.
template <class Header>
[[nodiscard]] absl::Status TakeHeader(const char* what, const std::array<char, 4>& magic,
                                      ByteReader& reader, Header& header) {
  header = reader.Get<Header>();
  if (!reader.ok() || header.magic != magic) {
    return Invalid(what, ": it must begin with a header of ", sizeof(header),
                   " bytes, the first of which are ", std::string_view(magic.data(), magic.size()));
  }
  if (header.major == kMajorVersion) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(what, ": major version must be ", kMajorVersion, "; it is ", header.major));
}

// The bytes of a header, and behind it the bytes of each of `parts`.
template <class Header, class... Parts>
[[nodiscard]] std::vector<std::uint8_t> BytesOf(const Header& header, const Parts&... parts) {
  std::vector<std::uint8_t> bytes((sizeof(header) + ... + std::span(parts).size_bytes()));
  RawWriter writer(bytes.data());
  writer.Put(header);
  (writer.PutBytes(std::span(parts).data(), std::span(parts).size_bytes()), ...);
  return bytes;
}

// Bytes of ChunkCodec::PlaceDigest, of which section kPlaces has one per chunk.
inline constexpr std::size_t kPlaceBytes = 4;

constexpr std::size_t RoundUp(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

// The rows and the byte offset of each chunk of a document. Both count from the first row and the
// first chunk of the document. A chunk has the rows of one page; the first and the last page may be
// incomplete.
class ChunkLayout {
 public:
  // REQUIRES: 0 <= first, 0 <= rows, first + rows <= kMostRows.
  ChunkLayout(const ChunkCodec& codec, std::int64_t first, std::int64_t rows)
      : rows_(rows), page_tokens_(codec.shape().rows.page_tokens) {
    const std::int64_t offset = first % page_tokens_;
    front_ = std::min(rows, page_tokens_ - offset);
    chunks_ = (offset + rows + page_tokens_ - 1) / page_tokens_;
    if (rows == 0) chunks_ = 0;
    front_bytes_ = codec.ChunkBytes(front_);
    page_bytes_ = codec.ChunkBytes(page_tokens_);
    bytes_ = chunks_ == 0 ? 0 : ByteBegin(chunks_ - 1) + codec.ChunkBytes(Rows(chunks_ - 1));
  }

  [[nodiscard]] std::int64_t chunks() const { return chunks_; }
  // Bytes of all chunks together; at most 2^48.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  // First row, number of rows and byte offset of chunk `c`. REQUIRES: c is in [0, chunks()).
  [[nodiscard]] std::int64_t RowBegin(std::int64_t c) const {
    return c == 0 ? 0 : front_ + (c - 1) * page_tokens_;
  }
  [[nodiscard]] std::int64_t Rows(std::int64_t c) const {
    return c == 0 ? front_ : std::min(page_tokens_, rows_ - RowBegin(c));
  }
  [[nodiscard]] std::uint64_t ByteBegin(std::int64_t c) const {
    return c == 0 ? 0 : front_bytes_ + static_cast<std::uint64_t>(c - 1) * page_bytes_;
  }
  // The chunk that contains row `row`. REQUIRES: row is in [0, rows).
  [[nodiscard]] std::int64_t ChunkOf(std::int64_t row) const {
    return row < front_ ? 0 : 1 + (row - front_) / page_tokens_;
  }

 private:
  std::int64_t rows_;
  std::int64_t page_tokens_;
  std::int64_t front_;  // rows of the first chunk
  std::int64_t chunks_;
  std::uint64_t front_bytes_;
  std::uint64_t page_bytes_;
  std::uint64_t bytes_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_FORMAT_H_
