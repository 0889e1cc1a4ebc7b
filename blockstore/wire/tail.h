// Tail segment: rows behind the last complete page of a trajectory.
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

// The bytes of the segment of the rows of `infos`, from `first` on, which lie at `ids` as for
// ChunkCodec::Encode. Provenance is left out. InvalidArgument unless there are 1 to B rows, all of
// one page and numbered below 2^31, or as Encode.
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> EncodeTailSegment(
    const ChunkCodec& codec, std::int64_t first, std::span<const RowInfo> infos,
    std::span<const std::uint8_t> ids);

// Back; any bytes are safe. The name of a segment is ContentDigest(bytes): the caller compares.
// Rows of a damaged chunk are missing as in Document::ReadRows. InvalidArgument naming what is
// wrong, the digest of another shape included; Unimplemented for another major version;
// ResourceExhausted when the segment makes a reader allocate more than `max_bytes`.
[[nodiscard]] absl::StatusOr<Rows> ParseTailSegment(const ChunkCodec& codec,
                                                    std::span<const std::uint8_t> bytes,
                                                    std::size_t max_bytes = std::size_t{1} << 30);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_TAIL_H_
