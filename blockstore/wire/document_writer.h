// Writing documents (.wmk): rows of one sequence with all that is known of them.
#ifndef WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_WRITER_H_
#define WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/digest.h"
#include "blockstore/rows.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire {

struct DocumentOptions {
  ChunkCode code;
  // Whether the steps of the rows go along. Shards that are joined elsewhere by JoinLayers need
  // them.
  bool steps = true;
  // The last node of the trajectory that these rows are the front of; zeros: not said.
  Digest128 trajectory;
  // The nodes of the complete pages, first to last, for a document that is a source of pages. Not
  // looked at. They outlive the writer.
  std::span<const std::vector<std::uint8_t>> nodes;
};

// The document of some rows, laid out but not written yet. Refers to the rows, which outlive it and
// do not change. Const access from any thread.
class DocumentWriter {
 public:
  // InvalidArgument when the rows do not hold what they say, or the code cannot write them;
  // Unimplemented as WireShape::Validate.
  [[nodiscard]] static absl::StatusOr<DocumentWriter> Create(const Rows& rows,
                                                             const DocumentOptions& options = {});

  // Of the whole document.
  [[nodiscard]] std::size_t bytes() const { return header_.size() + chunk_bytes_; }
  // Writes it. InvalidArgument unless out.size() is bytes(), or for ids that the code does not
  // have; `out` is then of no use.
  [[nodiscard]] absl::Status WriteTo(std::span<std::uint8_t> out) const;
  // Writes it to a file beside `path` that then takes its place: nobody sees half of one. Errors as
  // WriteTo; Unavailable with the system's words when the file cannot be written, and nothing is
  // left behind.
  [[nodiscard]] absl::Status WriteFile(const std::string& path) const;

 private:
  DocumentWriter(const Rows& rows, ChunkCodec codec) : rows_(&rows), codec_(std::move(codec)) {}
  [[nodiscard]] absl::Status WriteChunks(std::int64_t begin, std::int64_t end,
                                         std::span<std::uint8_t> out) const;

  const Rows* rows_;
  ChunkCodec codec_;
  std::vector<std::uint8_t> header_;
  std::size_t chunk_bytes_ = 0;
};

// The whole document, in memory. Errors as DocumentWriter and Snapshot::ReadRows.
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> WriteDocument(
    const Rows& rows, const DocumentOptions& options = {});
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> WriteDocument(
    const Snapshot& snapshot, const DocumentOptions& options = {});

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_WRITER_H_
