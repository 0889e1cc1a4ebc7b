// Trajectory: what names rows that are all here: their nodes and their handle.
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

// A value.
struct Trajectory {
  std::vector<std::vector<std::uint8_t>> nodes;  // of the complete pages, first to last
  Handle handle;                                 // as a Publisher makes it of the rows at once
};

// The trajectory of rows [0, last). A document of them that has these nodes and the handle's head
// (DocumentOptions) is a source of all that the handle names. `store`: what the handle names.
// InvalidArgument unless the rows begin at row 0, hold what they say, and the code can write them;
// Unimplemented as WireShape::Validate. Any thread.
[[nodiscard]] absl::StatusOr<Trajectory> MakeTrajectory(const Rows& rows, const ChunkCode& code,
                                                        std::string store = {});

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_TRAJECTORY_H_
