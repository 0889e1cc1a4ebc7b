// DocumentWriter: writes rows of one sequence, with their coverage and steps, as a document (.wmk).
// docs/internals/format.md defines the bytes.
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
#include "blockstore/wire/chunk.h"
#include "blockstore/wire/shape_block.h"

namespace waymark::wire {

struct DocumentOptions {
  // How ids are encoded. `ordered` is ignored if the rows are not in the router's order: see
  // ChunkCode::For.
  ChunkCode code;
  // Whether the document has the steps of its rows. Without them JoinLayers does not know whether
  // the rows of two shards are of one step.
  bool steps = true;
  // The digest of the last node of the trajectory that begins with these rows; zeros: not named.
  Digest128 trajectory;
  // The nodes of the complete pages, first to last, for a document that a FileSource will serve.
  // Written as they are, without a check. Create copies them.
  std::span<const std::vector<std::uint8_t>> nodes;
};

// The document of some rows: its header is made, its chunks are not encoded yet. Refers to the
// rows, which must outlive it and not change. Const access from any thread.
class DocumentWriter {
 public:
  // InvalidArgument if CheckRows rejects the rows, a reason or provenance has no name, or the
  // header would exceed 2^32 bytes; Unimplemented and InvalidArgument as WireShape::Validate.
  [[nodiscard]] static absl::StatusOr<DocumentWriter> Create(const Rows& rows,
                                                             const DocumentOptions& options = {});

  // Bytes of the whole document.
  [[nodiscard]] std::size_t bytes() const { return header_.size() + chunk_bytes_; }
  // Writes the document to `out`. InvalidArgument unless out.size() is bytes(), or if the code
  // cannot encode the ids of a row; the contents of `out` are then unspecified.
  [[nodiscard]] absl::Status WriteTo(std::span<std::uint8_t> out) const;
  // Makes the document in memory, and writes it as WriteWholeFile does: to `path`.partial, which is
  // renamed to `path`. Errors of both.
  [[nodiscard]] absl::Status WriteFile(const std::string& path) const;

 private:
  DocumentWriter(const Rows& rows, ChunkCodec codec) : rows_(&rows), codec_(std::move(codec)) {}

  const Rows* rows_;  // the caller's
  ChunkCodec codec_;
  std::vector<std::uint8_t> header_;  // everything before the first chunk; places and crc are 0
  std::size_t places_begin_ = 0;      // of the payload of the places in header_
  std::size_t chunk_bytes_ = 0;       // of all chunks together
};

// The document of `rows` as bytes. Errors as DocumentWriter::Create and WriteTo. Any thread.
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> WriteDocument(
    const Rows& rows, const DocumentOptions& options = {});

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_DOCUMENT_WRITER_H_
