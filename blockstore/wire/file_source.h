// FileSource: the objects of a document (.wmk) that has its nodes, where they lie in the file.
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
#include "blockstore/wire/page_source.h"

namespace waymark::wire {

// Maps the file, and finds in it every node of its nodes section and every complete page that these
// name; objects lie in the mapping, which lives as long as they do. The rows behind the last
// complete page are one tail segment, as a Publisher makes it of rows that are published at once; a
// tail of several segments lies elsewhere. A page that is not complete in the document is absent.
// Never waits. Another process that cuts the file off makes this one receive SIGBUS.
class FileSource final : public PageSource {
 public:
  // NotFound or Unavailable with the system's words when the file cannot be mapped; else errors as
  // Document::Open and ParseNode. FailedPrecondition when the document has no nodes.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FileSource>> Open(
      const std::string& path, const ReadLimits& limits = {});
  ~FileSource() override;

  [[nodiscard]] absl::Status Get(std::span<const Digest128> digests, Deadline deadline,
                                 std::span<Object> objects) override;
  [[nodiscard]] absl::Status GetRanges(std::span<const ObjectRange> ranges, Deadline deadline,
                                       std::span<Object> parts) override;
  // Unimplemented: it is read only.
  [[nodiscard]] absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override;
  // Exact.
  [[nodiscard]] absl::Status Holds(std::span<const Digest128> digests, Deadline deadline,
                                   std::span<std::uint8_t> held) override;

  // Of the file.
  [[nodiscard]] const Document& document() const;
  // Objects found.
  [[nodiscard]] std::size_t size() const;

 private:
  struct State;
  explicit FileSource(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_FILE_SOURCE_H_
