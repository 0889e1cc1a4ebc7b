// Tail segment: an object with rows after the last complete page of a trajectory. A trajectory
// that grows row by row adds segments, and never changes one, until the page is complete.
// docs/format.md defines the bytes.
#ifndef WAYMARK_BLOCKSTORE_WIRE_TAIL_H_
#define WAYMARK_BLOCKSTORE_WIRE_TAIL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/wire/chunk.h"

namespace waymark::wire {

// Encodes the segment of rows [first, first + infos.size()) of a sequence, with `ids` as for
// ChunkCodec::Encode. Their provenance is left out. InvalidArgument unless there are 1 ... B rows,
// all of one page and below position 2^31 - 1, or as ChunkCodec::Encode. Any thread.
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> EncodeTailSegment(
    const ChunkCodec& codec, std::int64_t first, std::span<const RowInfo> infos,
    std::span<const std::uint8_t> ids);

// Parses layers [layer_begin, layer_end) of a segment into rows whose provenance is kHere; any
// bytes are safe, any thread. Does not check the segment's own digest: the caller compares it with
// that of `bytes`. If the crcs do not match, all rows are missing (not captured); a row with
// impossible ids in these layers is missing (invalid id). InvalidArgument naming what is wrong, a
// shape other than the codec's included; Unimplemented for another major version; ResourceExhausted
// if the rows take more than `max_bytes`. REQUIRES: 0 <= layer_begin < layer_end <= L.
[[nodiscard]] absl::StatusOr<Rows> ParseTailSegment(const ChunkCodec& codec,
                                                    std::span<const std::uint8_t> bytes,
                                                    std::int32_t layer_begin,
                                                    std::int32_t layer_end,
                                                    std::size_t max_bytes = std::size_t{1} << 30);
// The same of all layers.
[[nodiscard]] inline absl::StatusOr<Rows> ParseTailSegment(const ChunkCodec& codec,
                                                           std::span<const std::uint8_t> bytes,
                                                           std::size_t max_bytes = std::size_t{1}
                                                                                   << 30) {
  return ParseTailSegment(codec, bytes, 0, codec.shape().rows.num_layers, max_bytes);
}

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_TAIL_H_
