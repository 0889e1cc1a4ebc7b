// MakeTrajectory: the nodes and the handle of rows that the caller has, without a publisher.
#ifndef WAYMARK_BLOCKSTORE_WIRE_TRAJECTORY_H_
#define WAYMARK_BLOCKSTORE_WIRE_TRAJECTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "blockstore/wire/handle.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire {

// The objects that name rows. A value.
struct Trajectory {
  std::vector<std::vector<std::uint8_t>> nodes;  // the bytes of each node, first to last
  Handle handle;  // equals the handle of a Publisher that was given all rows at once
};

// The trajectory of `rows`, which begin at row 0. A document of the same rows and code, written
// with these nodes and with handle.head as its trajectory (DocumentOptions), opens as a FileSource
// that has every object the handle names. `store` becomes Handle::store. The chunks are encoded to
// compute their digests, and discarded. InvalidArgument unless rows.first is 0, CheckRows accepts
// the rows, and the code can encode them; Unimplemented as WireShape::Validate. Any thread.
[[nodiscard]] absl::StatusOr<Trajectory> MakeTrajectory(const Rows& rows, const ChunkCode& code,
                                                        std::string store = {});

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_TRAJECTORY_H_
