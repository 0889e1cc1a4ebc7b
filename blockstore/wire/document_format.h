// The header of documents, and where their chunks lie. Internal to blockstore; docs/format.md is
// the contract.
#ifndef WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_FORMAT_H_
#define WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_FORMAT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "blockstore/digest.h"
#include "blockstore/wire/chunk.h"

namespace waymark::wire {

inline constexpr std::uint8_t kDocumentMagic[8] = {0x89, 'W', 'M', 'K', '\r', '\n', 0x1a, '\n'};
inline constexpr std::uint16_t kMajorVersion = 1;
inline constexpr std::uint16_t kMinorVersion = 0;
inline constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
inline constexpr std::size_t kHeaderAlignment = 64;

// What a document begins with, as it lies in memory, little-endian. Sections follow, then chunks.
struct DocumentHeader {
  std::uint8_t magic[8];
  std::uint16_t major;           // another one is refused
  std::uint16_t minor;           // a later one is read
  std::uint32_t header_bytes;    // up to the first chunk, a multiple of kHeaderAlignment
  std::uint32_t crc;             // of header_bytes bytes, with 0 here
  std::uint32_t zero;            // 0; passed over by readers
  std::uint64_t document_bytes;  // all of it; a file may be cut off before
  std::uint64_t first;           // rows [first, first + rows) of one sequence
  std::uint64_t rows;
  Digest128 trajectory;  // the last node of the trajectory; zeros: not said
};
static_assert(sizeof(DocumentHeader) == 64 && offsetof(DocumentHeader, crc) == 16);

enum class Section : std::uint16_t { kEnd = 0, kShape, kCoverage, kSteps, kNodes };
inline constexpr std::uint16_t kMustUnderstand = 1;

// Before each section, which begins at a multiple of 8 bytes.
struct SectionHeader {
  std::uint16_t type;   // a Section; others are passed over, unless
  std::uint16_t flags;  // kMustUnderstand says that the document means something else with it
  std::uint32_t bytes;  // of the payload, padding left out
};
static_assert(sizeof(SectionHeader) == 8);

constexpr std::size_t RoundUp(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

// Which rows of a document each chunk has, and where its bytes are. Rows and bytes are counted from
// the first of the document's.
class ChunkPlaces {
 public:
  // REQUIRES: 0 <= first, 0 <= rows, first + rows <= kMostRows.
  ChunkPlaces(const ChunkCodec& codec, std::int64_t first, std::int64_t rows)
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
  // Of all chunks together; at most 2^48.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  // Of chunk `c`, in [0, chunks()).
  [[nodiscard]] std::int64_t RowBegin(std::int64_t c) const {
    return c == 0 ? 0 : front_ + (c - 1) * page_tokens_;
  }
  [[nodiscard]] std::int64_t Rows(std::int64_t c) const {
    return c == 0 ? front_ : std::min(page_tokens_, rows_ - RowBegin(c));
  }
  [[nodiscard]] std::uint64_t ByteBegin(std::int64_t c) const {
    return c == 0 ? 0 : front_bytes_ + static_cast<std::uint64_t>(c - 1) * page_bytes_;
  }
  // The chunk of row `row`, in [0, rows).
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
