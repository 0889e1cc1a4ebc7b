// NodeList: an object that lists the nodes of a trajectory, so that a reader can fetch them
// together and not one after the other. docs/format.md defines the bytes.
#ifndef WAYMARK_BLOCKSTORE_WIRE_NODE_LIST_H_
#define WAYMARK_BLOCKSTORE_WIRE_NODE_LIST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/digest.h"

namespace waymark::wire {

// The nodes of the shortest trajectory that has a list. Those of a shorter one are found in as few
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

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_NODE_LIST_H_
