// ChunkCodec: encodes and decodes a chunk, the ids of the rows of one page.
//
// A chunk is one crc for every few layers (WireShape::num_crcs of them, uint32), then the ids
// layer-major, [L][rows]. It does not contain which rows are missing: that is the coverage, which
// is stored beside it (coverage.h). docs/internals/format.md defines the bytes.
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
#include "blockstore/distinct_ids.h"
#include "blockstore/row_info.h"
#include "blockstore/wire/digest_key.h"
#include "blockstore/wire/set_code.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire {

// Result of ChunkCodec::Decode.
enum class ChunkState : std::uint8_t {
  kGood,       // every row was decoded
  kDamaged,    // a crc does not match: nothing was written
  kInvalidId,  // the crcs match, but some rows have impossible ids: those rows are marked
};

// Encodes and decodes the chunks of one shape. A chunk holds 1 ... B rows, but not their number:
// every call takes that number, as an argument or as the number of infos.
//
// Immutable: const access from any thread.
class ChunkCodec {
 public:
  // The codec of `shape`; it names chunks with `key`. Both are copied. Fails as WireShape::Validate
  // does. Throws std::bad_alloc.
  [[nodiscard]] static absl::StatusOr<ChunkCodec> Create(const WireShape& shape,
                                                         const DigestKey& key = {});

  [[nodiscard]] const WireShape& shape() const { return shape_; }
  [[nodiscard]] const DigestKey& key() const { return key_; }
  // ShapeDigest(shape()). The digest of every chunk covers it.
  [[nodiscard]] std::uint64_t shape_digest() const { return shape_digest_; }
  // Bytes of one layer of `rows` rows, at most 2^19. REQUIRES: 0 <= rows <= B.
  [[nodiscard]] std::size_t LayerBytes(std::int64_t rows) const;
  // Bytes of a chunk of `rows` rows, crcs included: 4 * num_crcs + L * LayerBytes(rows), which is
  // below 2^30. REQUIRES: 0 <= rows <= B.
  [[nodiscard]] std::size_t ChunkBytes(std::int64_t rows) const;

  // Writes the chunk of the rows of `infos` to `chunk`. `ids` holds their ids as the store keeps
  // them: [rows][L][K], uint8 if E <= 256, else uint16. A row that is missing by `infos` is encoded
  // as zero bits, whatever its ids are. `chunk` need not be aligned.
  //
  // InvalidArgument unless infos has 1 ... B entries and ids.size() and chunk.size() follow from
  // that number; nothing is written. InvalidArgument under the set code if the ids of a valid row
  // are out of range or repeat in a layer; the contents of `chunk` are then unspecified. The raw
  // codec does not check ids.
  [[nodiscard]] absl::Status Encode(std::span<const RowInfo> infos,
                                    std::span<const std::uint8_t> ids,
                                    std::span<std::uint8_t> chunk) const;

  // Writes the rows and layers of `part` to `ids`, [rows of part][layers of part][K], as the store
  // keeps ids. Rows that are missing by `infos` are zeros. Of `chunk` it reads the crcs of the
  // groups of layers that `part` touches, and those groups; the other bytes may be anything. Any
  // bytes are safe, at any address.
  //
  // kInvalidId: invalid[i] is 1 if row part.row_begin + i is valid by `infos` and has, in a layer
  // of `part`, an id that is not below E, or an id twice (under the set code: a code of no set of
  // ids), else 0; the ids of the marked rows are zeros. `invalid` is unspecified otherwise.
  //
  // REQUIRES: `infos` covers all rows of the chunk; chunk.size() is ChunkBytes(infos.size());
  // `part` lies in the chunk and is not empty; `ids` has exactly the bytes of `part`; `invalid` has
  // one byte per row of `part`.
  [[nodiscard]] ChunkState Decode(std::span<const RowInfo> infos,
                                  std::span<const std::uint8_t> chunk, const RowsAndLayers& part,
                                  std::span<std::uint8_t> ids,
                                  std::span<std::uint8_t> invalid) const;

  // The layers of a chunk of `rows` rows, without a copy: layer l is bytes
  // [l, l + 1) * LayerBytes(rows) of the result, which points into `chunk`. Checks the crcs that
  // cover layers [layer_begin, layer_end), and returns nullopt if one does not match. Does not
  // check ids. REQUIRES: chunk.size() is ChunkBytes(rows); 0 <= layer_begin < layer_end <= L.
  [[nodiscard]] std::optional<std::span<const std::uint8_t>> Layers(
      std::int64_t rows, std::span<const std::uint8_t> chunk, std::int32_t layer_begin,
      std::int32_t layer_end) const;

  // The low 32 bits of XXH3-64 of the crcs of a chunk. A document has it of each chunk, in order,
  // so that a chunk in the place of another is found. REQUIRES: `chunk` is at least as long as
  // the crcs.
  [[nodiscard]] std::uint32_t PlaceDigest(std::span<const std::uint8_t> chunk) const;
  // The digest that names a chunk of `rows` rows: of the shape digest (uint64), rows (uint32)
  // and the chunk's bytes; with a key, of "WMKC" and these. Without a key its w[0] is
  // PlaceDigest(chunk), by which those who have the crcs alone can tell whether they are of the
  // chunk that was named. REQUIRES: chunk.size() is ChunkBytes(rows).
  [[nodiscard]] Digest128 Digest(std::int64_t rows, std::span<const std::uint8_t> chunk) const;

 private:
  ChunkCodec(const WireShape& shape, const DigestKey& key, std::optional<SetCode> set_code);
  // Writes the layers of a raw chunk.
  void EncodeRaw(std::span<const RowInfo> infos, std::span<const std::uint8_t> ids,
                 std::span<std::uint8_t> layers) const;
  // Returns true if no row of `part` has an impossible id; else marks those that have one.
  [[nodiscard]] bool DecodeRaw(std::span<const RowInfo> infos, const std::uint8_t* layers,
                               const RowsAndLayers& part, std::span<std::uint8_t> ids,
                               std::span<std::uint8_t> invalid) const;
  // Whether the crcs of layers [layer_begin, layer_end) match.
  [[nodiscard]] bool CrcsMatch(std::span<const std::uint8_t> chunk, std::size_t layer_bytes,
                               std::int32_t layer_begin, std::int32_t layer_end) const;

  WireShape shape_;
  DigestKey key_;
  std::uint64_t shape_digest_;
  std::size_t group_bytes_;          // bytes of the stored ids of one row and layer
  std::optional<SetCode> set_code_;  // nullopt: the raw codec
  DistinctIds distinct_;
  // Raw and not ordered: the exchanges that sort the ids of one row and layer. Else empty.
  std::vector<std::pair<std::uint8_t, std::uint8_t>> network_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_CHUNK_H_
