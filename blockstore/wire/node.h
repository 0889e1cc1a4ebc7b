// Node: what names up to 64 complete pages of a trajectory, and every page before them.
#ifndef WAYMARK_BLOCKSTORE_WIRE_NODE_H_
#define WAYMARK_BLOCKSTORE_WIRE_NODE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/digest.h"
#include "blockstore/row_info.h"
#include "blockstore/wire/coverage.h"

namespace waymark::wire {

// Chunks of every node of a trajectory but the last, which may have fewer.
inline constexpr std::int64_t kNodeChunks = 64;

// A node that was parsed. Its bytes may go.
struct Node {
  std::uint64_t shape_digest = 0;
  std::int64_t first_page = 0;    // a multiple of kNodeChunks
  Digest128 before;               // the digest of the node before; zeros for page 0
  std::vector<Digest128> chunks;  // one a page
  KnownRows known;                // of their rows, B a page, provenance kHere
};

// The bytes of the node of `chunks.size()` complete pages, from `first_page` on, whose rows have
// `infos`; provenance is left out. InvalidArgument unless there are 1 to 64 chunks and as many
// infos as `page_tokens` rows a page make, first_page is a multiple of 64 whose rows are numbered
// below 2^31, and `before` is zeros for page 0 and only then.
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> EncodeNode(
    std::uint64_t shape_digest, std::int64_t first_page, const Digest128& before,
    std::span<const Digest128> chunks, std::int32_t page_tokens, std::span<const RowInfo> infos);

// Back; any bytes are safe. The name of a node is ContentDigest(bytes): the caller compares.
// InvalidArgument naming what is wrong, a shape digest that is not `shape_digest` included;
// Unimplemented for another major version; ResourceExhausted when its runs take more than
// `max_bytes`. REQUIRES: 1 <= page_tokens <= 4096.
[[nodiscard]] absl::StatusOr<Node> ParseNode(std::span<const std::uint8_t> bytes,
                                             std::uint64_t shape_digest, std::int32_t page_tokens,
                                             std::size_t max_bytes = std::size_t{1} << 26);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_NODE_H_
