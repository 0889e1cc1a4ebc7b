// PublishInput, PublishedSequence: the rows of one publication, and what a publisher remembers of a
// sequence. Internal to wire.
#ifndef WAYMARK_BLOCKSTORE_WIRE_PUBLISHED_SEQUENCE_H_
#define WAYMARK_BLOCKSTORE_WIRE_PUBLISHED_SEQUENCE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/wire/handle.h"

namespace waymark::wire {

// The rows to publish: a snapshot, or rows that were read already.
struct PublishInput {
  Snapshot snapshot;
  Rows rows;  // used if the snapshot is empty

  [[nodiscard]] bool pinned() const { return snapshot.shape() != nullptr; }
  [[nodiscard]] std::int64_t first() const { return pinned() ? snapshot.first() : rows.first; }
  [[nodiscard]] std::int64_t last() const { return pinned() ? snapshot.last() : rows.last(); }
  [[nodiscard]] const RoutingShape& shape() const {
    return pinned() ? *snapshot.shape() : rows.shape;
  }
  [[nodiscard]] std::optional<PageRef> PageOf(std::int64_t row) const {
    return pinned() ? snapshot.PageOf(row) : std::nullopt;
  }
  // Reads rows [begin, end): their infos, and their ids as the store keeps them.
  [[nodiscard]] absl::Status Read(std::int64_t begin, std::int64_t end, std::span<RowInfo> infos,
                                  std::span<std::uint8_t> ids) const;
  [[nodiscard]] absl::Status ReadInfos(std::int64_t begin, std::int64_t end,
                                       std::span<RowInfo> infos) const;
};

// What is remembered of a sequence, so that later rows can extend it.
struct PublishedSequence {
  Handle handle;
  std::vector<Digest128> nodes;    // their digests, first to last
  std::vector<std::uint8_t> node;  // the bytes of its last node
  Rows tail;                       // rows after the last complete page
  std::vector<std::size_t> cuts;   // number of rows of each tail segment
  bool disputed = false;  // two requests have published under its name, not forgotten between
};

// Whether `input`, which begins at row 0, is of another request than the rows of `known`: it has
// fewer rows, or valid rows of other steps. Of these, those of the last node and of the tail are
// compared, because requests share their first ones. Errors of reading the snapshot.
[[nodiscard]] absl::StatusOr<bool> IsOtherRequest(const PublishInput& input,
                                                  const PublishedSequence& known,
                                                  std::uint64_t shape_digest,
                                                  std::int64_t page_tokens);

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_PUBLISHED_SEQUENCE_H_
