// Document: reading documents (.wmk) where they lie.
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

// What bytes from outside may make a reader do. A call that would go beyond is ResourceExhausted.
struct ReadLimits {
  std::int64_t max_rows = std::int64_t{1} << 24;  // rows of one read
  std::size_t max_bytes = std::size_t{1} << 32;   // memory that one call allocates
};

// What a read found missing that coverage calls valid. All zero when the bytes are as they were
// written.
struct ReadDamage {
  std::int64_t damaged_chunks = 0;  // a crc did not fit: their rows are missing (not captured)
  std::int64_t absent_chunks = 0;   // beyond the end of the bytes: missing (not captured)
  std::int64_t invalid_rows = 0;    // an id was not below E: missing (invalid id)

  [[nodiscard]] bool any() const {
    return damaged_chunks != 0 || absent_chunks != 0 || invalid_rows != 0;
  }
};

// The shape of rows of which only these layers are read. REQUIRES: 0 <= layer_begin < layer_end <=
// shape.num_layers.
[[nodiscard]] RoutingShape LayersShape(const RoutingShape& shape, std::int32_t layer_begin,
                                       std::int32_t layer_end);

// Rows [first, first + rows) of a document, coded, where they lie: layer l at layers.data() +
// l * layer_bytes. Of Codec::kRaw that is [L][rows][K] stored ids.
struct ChunkView {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::size_t layer_bytes = 0;
  std::span<const std::uint8_t> layers;
};

// A document in bytes that somebody else owns: memory, or a mapped file. They outlive it. Opening
// reads the header; nothing of a chunk is touched until it is read. Const access from any thread.
class Document {
 public:
  // Any bytes are safe, and what follows the document is not looked at. InvalidArgument naming what
  // is wrong; Unimplemented for another major version, a section that must be understood and is
  // not, or a shape block as DecodeShapeBlock says; DataLoss when the header is damaged or not all
  // there; ResourceExhausted.
  [[nodiscard]] static absl::StatusOr<Document> Open(std::span<const std::uint8_t> bytes,
                                                     const ReadLimits& limits = {});

  [[nodiscard]] const WireShape& shape() const { return codec_.shape(); }
  [[nodiscard]] std::int64_t first() const { return first_; }
  [[nodiscard]] std::int64_t last() const { return first_ + known_.rows(); }
  [[nodiscard]] std::int64_t size() const { return known_.rows(); }
  [[nodiscard]] int minor_version() const { return minor_; }
  // Of the document by its header; truncated() when fewer were given.
  [[nodiscard]] std::uint64_t bytes() const { return document_bytes_; }
  [[nodiscard]] bool truncated() const { return bytes_.size() < document_bytes_; }
  // Whether steps are known; else every step reads 0.
  [[nodiscard]] bool has_steps() const { return has_steps_; }
  // The last node of the trajectory that these rows are the front of; zeros: not said.
  [[nodiscard]] const Digest128& trajectory() const { return trajectory_; }
  // Each node's bytes, where they lie; empty when the document has none. ParseNode looks at them.
  [[nodiscard]] std::span<const std::span<const std::uint8_t>> nodes() const { return nodes_; }
  // What the document says of its rows, whatever has become of their chunks.
  [[nodiscard]] std::vector<CoverageRun> Coverage() const { return known_.Coverage(first_); }

  // Everything: rows [first(), last()), all layers. Rows are numbered by their position.
  [[nodiscard]] RowsAndLayers All() const { return {first(), last(), 0, shape().rows.num_layers}; }
  // The rows and layers of `part` as an owning value, whose shape has those layers. Touches no more
  // than the crcs and layers that cover the part, in the chunks of those rows. `damage`, if not
  // null, is set. OutOfRange unless the part lies in All() and has a layer; ResourceExhausted.
  [[nodiscard]] absl::StatusOr<Rows> ReadRows(const RowsAndLayers& part,
                                              ReadDamage* damage = nullptr) const;
  // The same to `rows`, whose memory is used again. It is left as it is on error.
  [[nodiscard]] absl::Status ReadRows(const RowsAndLayers& part, Rows& rows,
                                      ReadDamage* damage = nullptr) const;
  // The same to memory of the caller: ids to `out` as `spec` says, infos to `infos` (empty: not
  // wanted). Errors as ReadRows and Snapshot::Read; nothing is written on error.
  [[nodiscard]] absl::Status Read(const RowsAndLayers& part, const ReadSpec& spec,
                                  std::span<std::uint8_t> out, std::span<RowInfo> infos = {},
                                  ReadDamage* damage = nullptr) const;
  // The chunk that has row `row`, without a copy; its crcs are looked at, its ids are not. Rows
  // that coverage calls missing are zeros. OutOfRange unless the row is in the document; DataLoss
  // when the chunk is damaged or not there.
  [[nodiscard]] absl::StatusOr<ChunkView> Chunk(std::int64_t row) const;
  // The shape of the rows that ReadRows gives for these layers. REQUIRES: they lie in All().
  [[nodiscard]] RoutingShape LayersShape(std::int32_t layer_begin, std::int32_t layer_end) const {
    return wire::LayersShape(shape().rows, layer_begin, layer_end);
  }

 private:
  Document(ChunkCodec codec, KnownRows known)
      : codec_(std::move(codec)), known_(std::move(known)) {}
  [[nodiscard]] absl::Status CheckPart(const RowsAndLayers& part) const;
  [[nodiscard]] absl::Status CheckMemory(std::size_t rows, std::size_t row_bytes) const;
  void ReadStored(const RowsAndLayers& part, std::span<std::uint8_t> ids, std::span<RowInfo> infos,
                  ReadDamage& damage) const;

  std::span<const std::uint8_t> bytes_;
  ReadLimits limits_;
  ChunkCodec codec_;
  KnownRows known_;
  std::uint64_t document_bytes_ = 0;
  std::uint64_t header_bytes_ = 0;
  std::int64_t first_ = 0;
  int minor_ = 0;
  bool has_steps_ = false;
  Digest128 trajectory_;
  std::vector<std::span<const std::uint8_t>> nodes_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_H_
