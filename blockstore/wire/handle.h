// Handle: what one process sends to another instead of rows. It names a trajectory, by the digests
// of its last node and its tail segments, and the page source that has the objects.
#ifndef WAYMARK_BLOCKSTORE_WIRE_HANDLE_H_
#define WAYMARK_BLOCKSTORE_WIRE_HANDLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/digest.h"
#include "blockstore/row_info.h"
#include "blockstore/wire/digest_key.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire {

// Rows [0, rows) of one sequence. A value. With B = shape.rows.page_tokens, rows / B pages are
// complete; the rest of the rows, rows % B of them, are the tail.
struct Handle {
  WireShape shape;
  // The name of the page source: UTF-8, fewer than 2^16 bytes. A label that the two processes agree
  // on; the library does not resolve it.
  std::string store;
  std::int64_t rows = 0;        // 0 ... 2^31 - 1
  Digest128 head;               // the digest of the last node; zeros if no page is complete
  std::vector<Digest128> tail;  // the tail's segments, in order: 1 to rows % B; none if that is 0
  std::vector<Provenance> provenance;  // one per row: differs between requests that share pages
  // A keyed handle has the HandleMac of the key with which its objects are named.
  std::optional<Digest128> mac;

  friend bool operator==(const Handle&, const Handle&) = default;
};

// Encodes a handle: some hundred bytes, 16 per tail segment and a few per run of provenance.
// InvalidArgument naming the field, the rule and the value, unless every field is in its range. Any
// thread.
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> EncodeHandle(const Handle& handle);
// The message authentication code of a handle under `key`: the digest of the handle's bytes as
// EncodeHandle writes them, with zeros for the crc and the code. Ignores handle.mac. Errors as
// EncodeHandle. REQUIRES: !key.empty().
[[nodiscard]] absl::StatusOr<Digest128> HandleMac(const Handle& handle, const DigestKey& key);
// Parses a handle; any bytes are safe, any thread. InvalidArgument naming what is wrong; DataLoss
// if the crc does not match; Unimplemented for another major version, an unknown flag, or as
// DecodeShapeBlock; ResourceExhausted beyond `max_rows` rows: provenance takes one byte of memory
// per row. Does not check `mac`: a fetcher does.
[[nodiscard]] absl::StatusOr<Handle> ParseHandle(std::span<const std::uint8_t> bytes,
                                                 std::int64_t max_rows = std::int64_t{1} << 24);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_HANDLE_H_
