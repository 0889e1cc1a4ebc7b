// FileSource: a page source that reads the objects of one document (.wmk) in place. The document
// must have its nodes (DocumentOptions::nodes).
#ifndef WAYMARK_BLOCKSTORE_WIRE_FILE_SOURCE_H_
#define WAYMARK_BLOCKSTORE_WIRE_FILE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/file_bytes.h"
#include "blockstore/wire/page_source.h"

namespace waymark::wire {

// Open reads the file into memory, or maps it, and indexes the nodes of its nodes section and the
// chunks of the complete pages that they name. The rows after the last complete page make one tail
// segment, which equals the segment of a Publisher that was given all rows at once; if rows were
// published piece by piece, their tail segments are not in the file. A page of which the document
// has only some rows is absent.
//
// Objects refer to the file's bytes and keep them alive. No call blocks on anything but a mapped
// file; deadlines are ignored.
class FileSource final : public PageSource {
 public:
  // Errors as FileBytes::Open, Document::Open and ParseNode; FailedPrecondition if the document
  // has no nodes; ResourceExhausted beyond `limits`.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FileSource>> Open(
      const std::string& path, const ReadLimits& limits = {},
      FileAccess access = FileAccess::kRead);
  ~FileSource() override;

  [[nodiscard]] absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                                 std::span<Object> objects) override;
  [[nodiscard]] absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                                       std::span<Object> objects) override;
  // Always Unimplemented: a FileSource is read-only.
  [[nodiscard]] absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override;
  // Exact: the file cannot lose an object.
  [[nodiscard]] absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                                   std::span<std::uint8_t> held) override;

  // The document of the file. Valid as long as the FileSource.
  [[nodiscard]] const Document& document() const;
  // The number of objects: nodes, their list, chunks and the tail segment.
  [[nodiscard]] std::size_t size() const;

 private:
  struct State;
  explicit FileSource(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_FILE_SOURCE_H_
