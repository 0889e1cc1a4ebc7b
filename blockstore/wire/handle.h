// Handle: what crosses a process in place of rows. It names a trajectory and where it lies.
#ifndef WAYMARK_BLOCKSTORE_WIRE_HANDLE_H_
#define WAYMARK_BLOCKSTORE_WIRE_HANDLE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/digest.h"
#include "blockstore/row_info.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire {

// Rows [0, rows) of one sequence. A value.
struct Handle {
  WireShape shape;
  std::string store;            // the name of the store that has the bytes: UTF-8, below 2^16 bytes
  std::int64_t rows = 0;        // below 2^31
  Digest128 head;               // the last node; zeros when no page is complete
  std::vector<Digest128> tail;  // segments in order: 1 to rows % B of them, none when that is 0
  std::vector<Provenance> provenance;  // of every row

  friend bool operator==(const Handle&, const Handle&) = default;
};

// The bytes of a handle. InvalidArgument naming the field, the rule and the value, unless
// everything above holds.
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> EncodeHandle(const Handle& handle);
// Back; any bytes are safe. InvalidArgument naming what is wrong; DataLoss when the crc does not
// fit; Unimplemented for another major version, or as DecodeShapeBlock; ResourceExhausted when it
// has more than `max_rows` rows: a handle takes a byte of memory for each.
[[nodiscard]] absl::StatusOr<Handle> ParseHandle(std::span<const std::uint8_t> bytes,
                                                 std::int64_t max_rows = std::int64_t{1} << 24);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_HANDLE_H_
