// The objects of a trajectory, beside its chunks. docs/internals/format.md defines the bytes.
//
// Node: names up to 64 complete pages, by the digests of their chunks, and the node before it, by
// its digest. So the digest of the last node names every complete page. Tail segment: has rows
// after the last complete page. A trajectory that grows row by row adds segments, and never changes
// one, until the page is complete.
#ifndef WAYMARK_BLOCKSTORE_WIRE_OBJECTS_H_
#define WAYMARK_BLOCKSTORE_WIRE_OBJECTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/digest.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/coverage.h"

namespace waymark::wire {

// Every node of a trajectory has this many chunks, except that the last may have fewer.
inline constexpr std::int64_t kNodeChunks = 64;

// A parsed node. A value that does not refer to the bytes.
struct Node {
  std::int64_t first_page = 0;    // the page of chunks[0]: a multiple of kNodeChunks
  Digest128 before;               // the digest of the node before; zeros if first_page is 0
  std::vector<Digest128> chunks;  // 1 ... kNodeChunks, one per page
  RowRuns known;                  // the infos of their rows, B per page; provenance is kHere
  std::vector<PageName> names;    // of those of its rows that have one, in order
};

// Encodes the node of pages [first_page, first_page + chunks.size()), whose rows have `infos`;
// their provenance is left out. `names`: in order; those of other rows are ignored, and those
// behind the 255th (of a tail segment the 7th).
// InvalidArgument unless there are 1 ... 64 chunks and chunks.size() * page_tokens infos,
// first_page is a multiple of 64, all rows lie below position 2^31 - 1, and `before` is zeros if
// first_page is 0 and only then. Any thread.
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> EncodeNode(
    std::uint64_t shape_digest, std::int64_t first_page, const Digest128& before,
    std::span<const Digest128> chunks, std::int32_t page_tokens, std::span<const RowInfo> infos,
    std::span<const PageName> names = {});

// Parses a node; any bytes are safe, any thread. Does not check the node's own digest: the caller
// compares it with `bytes`. InvalidArgument naming what is wrong, a shape digest other than
// `shape_digest` included; Unimplemented for another major version; ResourceExhausted if the runs
// of the infos take more than `max_bytes`. REQUIRES: 1 <= page_tokens <= 4096.
[[nodiscard]] absl::StatusOr<Node> ParseNode(std::span<const std::uint8_t> bytes,
                                             std::uint64_t shape_digest, std::int32_t page_tokens,
                                             std::size_t max_bytes = std::size_t{1} << 26);

// The digests of the chunks that a node names, without its other checks; none if the bytes are no
// node. Any thread.
[[nodiscard]] std::vector<Digest128> ChunksOfNode(std::span<const std::uint8_t> bytes);

// ---- the node list: an object that lists the nodes of a trajectory, so that a reader can fetch
// them together and not one after the other

// The nodes of the shortest trajectory that has a list. A shorter one's are found in as few
// round trips without.
inline constexpr std::size_t kListedNodes = 4;

// The digest under which the list of the trajectory whose last node is `head` is stored. It is not
// the digest of the list's bytes: a reader that has a handle must be able to compute it. So the
// list may be anything, and a reader uses a node only if the chain from the head leads to it. Any
// thread.
[[nodiscard]] Digest128 NodeListName(const Digest128& head);
// Encodes the list of nodes with these digests, first to last. Any thread.
[[nodiscard]] std::vector<std::uint8_t> EncodeNodeList(std::span<const Digest128> nodes);
// Parses the list of exactly `nodes` nodes; any bytes are safe, any thread. InvalidArgument naming
// what is wrong; Unimplemented for another major version.
[[nodiscard]] absl::StatusOr<std::vector<Digest128>> ParseNodeList(
    std::span<const std::uint8_t> bytes, std::size_t nodes);

// ---- tail segments

// Encodes the segment of rows [first, first + infos.size()) of a sequence, with `ids` as for
// ChunkCodec::Encode. Their provenance is left out; `names`: as EncodeNode. InvalidArgument unless
// there are 1 ... B rows, all of one page and below position 2^31 - 1, or as ChunkCodec::Encode.
// Any thread.
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> EncodeTailSegment(
    const ChunkCodec& codec, std::int64_t first, std::span<const RowInfo> infos,
    std::span<const std::uint8_t> ids, std::span<const PageName> names = {});

// Parses layers [layer_begin, layer_end) of a segment into rows whose provenance is kHere; any
// bytes are safe, any thread. Does not check the segment's own digest: the caller compares it with
// `bytes`. If the crcs do not match, all rows are missing (not captured); a row with
// impossible ids in these layers is missing (invalid id). InvalidArgument naming what is wrong, a
// shape other than the codec's included; Unimplemented for another major version. REQUIRES:
// 0 <= layer_begin < layer_end <= L.
[[nodiscard]] absl::StatusOr<Rows> ParseTailSegment(const ChunkCodec& codec,
                                                    std::span<const std::uint8_t> bytes,
                                                    std::int32_t layer_begin,
                                                    std::int32_t layer_end);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_OBJECTS_H_
