// WireShape: the shape of rows on the wire and the encoding of their chunks; the shape block, which
// is its bytes, and the digest of that. docs/internals/format.md defines the bytes.
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

// How the ids of a layer are stored. The numbers are part of the format.
enum class Codec : std::uint16_t {
  kRaw = 0,      // as the store keeps them: uint8 if E <= 256, else uint16
  kSetCode = 1,  // as a set, in a fixed number of bits (set_code.h); never ordered
};

// How chunks are encoded.
struct ChunkCode {
  Codec codec = Codec::kRaw;
  // True: the ids of a row and layer keep the router's order. False: they are stored ascending.
  // Must be false under kSetCode.
  bool ordered = true;
  // The parameters of the set code; SetCodeParams::Default returns good ones. Under kRaw they must
  // be 0 and kRanked.
  std::int32_t low_bits = 0;
  HighBits high_bits = HighBits::kRanked;
  // How many layers each crc of a chunk covers, 1 ... L. 0 stands for ceil(L / 4), which is what is
  // written. Fewer layers per crc let readers fetch fewer bytes if they read few layers.
  std::int32_t crc_layers = 0;

  // The set code with the parameters that are recommended for this shape.
  [[nodiscard]] static ChunkCode SetCodeFor(const RoutingShape& shape);
  // This code for `rows`: not ordered if the rows are not, so that no document claims an order that
  // was already lost.
  [[nodiscard]] ChunkCode For(const Rows& rows) const {
    ChunkCode code = *this;
    code.ordered &= rows.ordered;
    return code;
  }

  friend bool operator==(const ChunkCode&, const ChunkCode&) = default;
};

// The shape of rows on the wire. Plain data.
struct WireShape {
  RoutingShape rows;  // L, K, E, B = page_tokens (the rows of a complete page), and the layer ids
  ChunkCode code;

  // Layers per crc, with the default filled in.
  [[nodiscard]] std::int32_t crc_layers() const {
    return code.crc_layers != 0 ? code.crc_layers : (rows.num_layers + 3) / 4;
  }
  // Crcs per chunk.
  [[nodiscard]] std::int32_t num_crcs() const {
    return (rows.num_layers + crc_layers() - 1) / crc_layers();
  }
  // The parameters of the set code. REQUIRES: the codec is kSetCode.
  [[nodiscard]] SetCodeParams set_code() const {
    return {rows.num_experts, rows.top_k, code.low_bits, code.high_bits};
  }
  // InvalidArgument naming the field, the rule and the value, unless rows.Validate() is OK and
  // `code` follows the rules above; Unimplemented naming an unknown codec.
  [[nodiscard]] absl::Status Validate() const;

  friend bool operator==(const WireShape&, const WireShape&) = default;
};

// Bytes of the shape block of a shape with this many layers.
[[nodiscard]] constexpr std::size_t ShapeBlockBytes(std::size_t num_layers) {
  return 28 + 4 * num_layers;
}
// Encodes the shape block. Any thread. REQUIRES: shape.Validate() is OK.
[[nodiscard]] std::vector<std::uint8_t> EncodeShapeBlock(const WireShape& shape);
// Parses a shape block; any bytes are safe, any thread. `bytes` must be exactly one block. The
// layer ids 0, 1, ... become empty layer_ids; crc_layers is the number in the block, never 0.
// InvalidArgument naming what is wrong; Unimplemented for an unknown id space, flag or codec.
[[nodiscard]] absl::StatusOr<WireShape> DecodeShapeBlock(std::span<const std::uint8_t> bytes);
// XXH3-64 (seed 0) of the shape block. Any thread. REQUIRES: shape.Validate() is OK.
[[nodiscard]] std::uint64_t ShapeDigest(const WireShape& shape);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_SHAPE_BLOCK_H_
