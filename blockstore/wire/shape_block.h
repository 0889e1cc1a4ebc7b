// WireShape: what the rows of chunks are and how chunks are coded; the shape block and its digest.
#ifndef WAYMARK_BLOCKSTORE_WIRE_SHAPE_BLOCK_H_
#define WAYMARK_BLOCKSTORE_WIRE_SHAPE_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "blockstore/shape.h"
#include "blockstore/wire/set_code.h"

namespace waymark::wire {

// How the ids of a layer are written. The numbers are part of the format.
enum class Codec : std::uint16_t {
  kRaw = 0,      // as the store keeps them: uint8 when E <= 256, else uint16
  kSetCode = 1,  // as a set, in a fixed number of bits; never ordered
};

// How chunks are coded.
struct ChunkCode {
  Codec codec = Codec::kRaw;
  // Ids stand in the order that the router gave; else ascending. kRaw only.
  bool ordered = true;
  // kSetCode: its parameters; SetCodeParams::Default knows good ones. 0 and kRanked under kRaw.
  std::int32_t low_bits = 0;
  HighParts high_parts = HighParts::kRanked;
  // How many layers each crc of a chunk covers, 1 ... L; 0 is written as ceil(L / 4).
  std::int32_t crc_layers = 0;

  // The set code with the parameters that are recommended for these rows.
  [[nodiscard]] static ChunkCode SetCodeFor(const RoutingShape& shape);
  // This code, but not ordered where the rows are not: nothing that is written claims an order that
  // was lost before.
  [[nodiscard]] ChunkCode For(const Rows& rows) const {
    ChunkCode code = *this;
    code.ordered &= rows.ordered;
    return code;
  }

  friend bool operator==(const ChunkCode&, const ChunkCode&) = default;
};

// The shape of rows on the wire. A page has `rows.page_tokens` rows.
struct WireShape {
  RoutingShape rows;
  ChunkCode code;

  // Layers under one crc, the default filled in.
  [[nodiscard]] std::int32_t crc_layers() const {
    return code.crc_layers != 0 ? code.crc_layers : (rows.num_layers + 3) / 4;
  }
  // Crcs of a chunk.
  [[nodiscard]] std::int32_t num_crcs() const {
    return (rows.num_layers + crc_layers() - 1) / crc_layers();
  }
  // REQUIRES: the codec is kSetCode.
  [[nodiscard]] SetCodeParams set_code() const {
    return {rows.num_experts, rows.top_k, code.low_bits, code.high_parts};
  }
  // InvalidArgument naming the field, the rule and the value; Unimplemented naming a codec that is
  // not known.
  [[nodiscard]] absl::Status Validate() const;

  friend bool operator==(const WireShape&, const WireShape&) = default;
};

// The bytes of a shape block with this many layers.
[[nodiscard]] constexpr std::size_t ShapeBlockBytes(std::size_t num_layers) {
  return 28 + 4 * num_layers;
}
// The shape block. REQUIRES: shape.Validate() is ok.
[[nodiscard]] std::vector<std::uint8_t> EncodeShapeBlock(const WireShape& shape);
// Back: any bytes are safe; they must be a shape block and nothing else. Layer numbers 0, 1, ...
// give empty layer_ids; crc_layers is what the block says. InvalidArgument naming what is wrong,
// Unimplemented for an id space, a flag or a codec that is not known.
[[nodiscard]] absl::StatusOr<WireShape> DecodeShapeBlock(std::span<const std::uint8_t> bytes);
// XXH3-64 of the shape block. REQUIRES: shape.Validate() is ok.
[[nodiscard]] std::uint64_t ShapeDigest(const WireShape& shape);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_SHAPE_BLOCK_H_
