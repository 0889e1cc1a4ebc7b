// ChunkCodec: the ids of the rows of one page, layer-major, under crcs of a few layers each.
//
// What is missing is said beside a chunk, never in it. docs/format.md has the bytes.
#ifndef WAYMARK_BLOCKSTORE_WIRE_CHUNK_H_
#define WAYMARK_BLOCKSTORE_WIRE_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/digest.h"
#include "blockstore/row_info.h"
#include "blockstore/wire/set_code.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire {

// What became of a part of a chunk that was to be read.
enum class ChunkState : std::uint8_t {
  kGood,       // the rows are there
  kDamaged,    // a crc does not fit: no row is there, and nothing was written
  kInvalidId,  // the bytes are as they were written, but some rows cannot be: they are marked
};

// Reads and writes the chunks of one shape. A chunk holds 1 ... B rows; how many is said beside it.
// Immutable: const access from any thread.
class ChunkCodec {
 public:
  // Errors as WireShape::Validate.
  [[nodiscard]] static absl::StatusOr<ChunkCodec> Create(const WireShape& shape);

  [[nodiscard]] const WireShape& shape() const { return shape_; }
  // Of the shape block; what digests of chunks begin with.
  [[nodiscard]] std::uint64_t shape_digest() const { return shape_digest_; }
  // The bytes of a layer of `rows` rows, at most 2^19; of their chunk, crcs included, below 2^30.
  // REQUIRES: 0 <= rows <= B.
  [[nodiscard]] std::size_t LayerBytes(std::int64_t rows) const;
  [[nodiscard]] std::size_t ChunkBytes(std::int64_t rows) const;

  // Writes the chunk of the rows of `infos`, which lie one behind the other at `ids` (stored bytes,
  // token-major). Those that are missing by `infos` are zero bits, whatever lies there.
  // InvalidArgument when ids.size() or chunk.size() is not what infos.size() makes it, and under
  // the set code for ids that are no set (the raw codec does not look).
  [[nodiscard]] absl::Status Encode(std::span<const RowInfo> infos,
                                    std::span<const std::uint8_t> ids,
                                    std::span<std::uint8_t> chunk) const;

  // Writes the rows and layers of `part` to `ids`, token-major, one row behind the other, in
  // stored bytes; missing rows are zeros. Reads nothing of `chunk` but the crcs that cover the part
  // and the bytes that they cover. `chunk` may lie at any address and be any bytes. kInvalidId:
  // invalid[i] is 1 where row part.row_begin + i has an id that is not below E (or, in a code,
  // stands for no ids), else 0, and the ids of such rows are zeros.
  // REQUIRES: infos has the infos of all rows of the chunk, chunk.size() is
  // ChunkBytes(infos.size()), the part lies in it and is not empty, `ids` has its bytes, and
  // `invalid` a byte for each of its rows.
  [[nodiscard]] ChunkState Decode(std::span<const RowInfo> infos,
                                  std::span<const std::uint8_t> chunk, const RowsAndLayers& part,
                                  std::span<std::uint8_t> ids,
                                  std::span<std::uint8_t> invalid) const;

  // The layers of a chunk of `rows` rows behind its crcs, which are all looked at: layer l is bytes
  // [l, l + 1) * LayerBytes(rows). nullopt when a crc does not fit. What the ids are is not looked
  // at. REQUIRES: chunk.size() is ChunkBytes(rows).
  [[nodiscard]] std::optional<std::span<const std::uint8_t>> Layers(
      std::int64_t rows, std::span<const std::uint8_t> chunk) const;

  // The name of a chunk of `rows` rows.
  [[nodiscard]] Digest128 Digest(std::int64_t rows, std::span<const std::uint8_t> chunk) const;

 private:
  ChunkCodec(const WireShape& shape, std::optional<SetCode> set_code);
  void EncodeRaw(std::span<const RowInfo> infos, std::span<const std::uint8_t> ids,
                 std::span<std::uint8_t> layers) const;
  // Whether no row of the part has an id that cannot be; else marks those that do.
  [[nodiscard]] bool DecodeRaw(std::span<const RowInfo> infos, const std::uint8_t* layers,
                               const RowsAndLayers& part, std::span<std::uint8_t> ids,
                               std::span<std::uint8_t> invalid) const;
  [[nodiscard]] bool DecodeSets(std::span<const RowInfo> infos, const std::uint8_t* layers,
                                const RowsAndLayers& part, std::span<std::uint8_t> ids,
                                std::span<std::uint8_t> invalid) const;
  [[nodiscard]] bool CrcsFit(std::span<const std::uint8_t> chunk, std::size_t layer_bytes,
                             std::int32_t layer_begin, std::int32_t layer_end) const;

  WireShape shape_;
  std::uint64_t shape_digest_;
  std::size_t group_bytes_;          // of the stored ids of one row and layer
  std::optional<SetCode> set_code_;  // the codec, unless it is raw
  // Raw: sorts the ids of a row and layer; empty where they keep their order.
  std::vector<std::pair<std::uint8_t, std::uint8_t>> network_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_CHUNK_H_
