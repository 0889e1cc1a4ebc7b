// Document: reads a document (.wmk), the rows of one sequence in the wire format, in place.
// docs/internals/format.md defines the bytes.
#ifndef WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_H_
#define WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/digest.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/coverage.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire {

// Bounds on what bytes from outside can make a reader do. A call that would exceed one fails with
// ResourceExhausted.
struct ReadLimits {
  std::int64_t max_rows = std::int64_t{1} << 24;  // rows per read
  std::size_t max_bytes = std::size_t{1} << 32;   // bytes of memory that one call may allocate
};

// Rows that the coverage calls valid and that a read returned as missing, by cause. All zero if the
// document is undamaged.
struct ReadDamage {
  std::int64_t damaged_chunks = 0;  // a crc or the place is wrong: rows missing (not captured)
  std::int64_t absent_chunks = 0;   // beyond the end of the bytes: rows missing (not captured)
  std::int64_t invalid_rows = 0;    // an id is out of range: row missing (invalid id)

  [[nodiscard]] bool any() const {
    return damaged_chunks != 0 || absent_chunks != 0 || invalid_rows != 0;
  }
};

// `shape` with only layers [layer_begin, layer_end). layer_ids are empty if they would be 0, 1, ...
// REQUIRES: 0 <= layer_begin < layer_end <= shape.num_layers.
[[nodiscard]] RoutingShape LayersShape(const RoutingShape& shape, std::int32_t layer_begin,
                                       std::int32_t layer_end);

// OutOfRange unless `part` lies in rows [first, last) and `num_layers` layers and has at least one
// layer; ResourceExhausted if it has more than `max_rows` rows.
[[nodiscard]] absl::Status CheckPart(const RowsAndLayers& part, std::int64_t first,
                                     std::int64_t last, std::int32_t num_layers,
                                     std::int64_t max_rows);

// The chunk of rows [first, first + rows), still encoded and not copied: layer l begins at
// layers.data() + l * layer_bytes. With Codec::kRaw that is [L][rows][K] ids as the store keeps
// them. Points into the document's bytes.
struct ChunkView {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::size_t layer_bytes = 0;
  std::span<const std::uint8_t> layers;
};

// A document in bytes that the caller owns (memory or a mapped file) and that must outlive it. Open
// reads the header alone; the bytes of a chunk are first touched when it is read.
//
// Const access from any thread. Copies refer to the same bytes.
class Document {
 public:
  // Parses the header. `bytes` may be any bytes, may be truncated after the header, and may
  // continue after the document. InvalidArgument naming what is wrong; Unimplemented for another
  // major version, for an unknown section that is marked as one that readers must understand, or as
  // DecodeShapeBlock; DataLoss if the header's crc does not match or the header is incomplete;
  // ResourceExhausted beyond limits.max_bytes.
  [[nodiscard]] static absl::StatusOr<Document> Open(std::span<const std::uint8_t> bytes,
                                                     const ReadLimits& limits = {});

  [[nodiscard]] const WireShape& shape() const { return codec_.shape(); }
  // The document has rows [first(), last()) of its sequence, by position.
  [[nodiscard]] std::int64_t first() const { return first_; }
  [[nodiscard]] std::int64_t last() const { return first_ + known_.rows(); }
  [[nodiscard]] std::int64_t size() const { return known_.rows(); }
  // Bytes of the whole document by its header. truncated(): fewer were given to Open, and the rows
  // of the chunks that are cut off read as missing.
  [[nodiscard]] std::uint64_t bytes() const { return document_bytes_; }
  [[nodiscard]] bool truncated() const { return bytes_.size() < document_bytes_; }
  // Whether the document has the steps of its rows. Without them every step reads as 0.
  [[nodiscard]] bool has_steps() const { return has_steps_; }
  // The bytes of each node of the document, first to last, not copied; empty if it has none.
  // Open does not check them: ParseNode does.
  [[nodiscard]] std::span<const std::span<const std::uint8_t>> nodes() const { return nodes_; }
  // The coverage that the document states, whatever the condition of its chunks.
  [[nodiscard]] std::vector<CoverageRun> Coverage() const { return known_.Coverage(first_); }

  // The rectangle of all rows, [first(), last()), and all layers. All rectangles below number rows
  // by their position in the sequence.
  [[nodiscard]] RowsAndLayers All() const { return {first(), last(), 0, shape().rows.num_layers}; }
  // Reads the rows and layers of `part` into a value of its own, whose shape has only those layers.
  // Touches only their places, and of the chunks of those rows the crcs and the layers that the
  // crcs over `part` cover. Rows of damaged or absent chunks are missing (see ReadDamage).
  //
  // `damage`, if not null, is set on success. OutOfRange unless `part` lies in All() and has at
  // least one layer; ResourceExhausted beyond the limits given to Open.
  [[nodiscard]] absl::StatusOr<Rows> ReadRows(const RowsAndLayers& part,
                                              ReadDamage* damage = nullptr) const;
  // The same into `rows`, whose memory is reused. On error `rows` is unchanged.
  [[nodiscard]] absl::Status ReadRows(const RowsAndLayers& part, Rows& rows,
                                      ReadDamage* damage = nullptr) const;
  // The chunk that contains row `row`, encoded and without a copy. Checks its place and its crcs,
  // not its ids. Rows that the coverage calls missing are zeros. OutOfRange unless `row` is in the
  // document; DataLoss if the chunk is damaged or cut off.
  [[nodiscard]] absl::StatusOr<ChunkView> Chunk(std::int64_t row) const;

 private:
  Document(ChunkCodec codec, RowRuns known) : codec_(std::move(codec)), known_(std::move(known)) {}
  [[nodiscard]] absl::Status Check(const RowsAndLayers& part) const {
    return CheckPart(part, first(), last(), shape().rows.num_layers, limits_.max_rows);
  }
  // Whether `chunk` is chunk `c` by its place.
  [[nodiscard]] bool InPlace(std::int64_t c, std::span<const std::uint8_t> chunk) const;
  // Writes the ids of `part`, as the store keeps them, and the infos of its rows.
  void ReadStored(const RowsAndLayers& part, std::span<std::uint8_t> ids, std::span<RowInfo> infos,
                  ReadDamage& damage) const;

  std::span<const std::uint8_t> bytes_;  // what Open was given, up to the document's end
  ReadLimits limits_;
  ChunkCodec codec_;
  RowRuns known_;
  std::uint64_t document_bytes_ = 0;
  std::uint64_t header_bytes_ = 0;
  std::int64_t first_ = 0;
  bool has_steps_ = false;
  std::vector<std::span<const std::uint8_t>> nodes_;
  std::span<const std::uint8_t> places_;  // kPlaceBytes per chunk
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_H_
