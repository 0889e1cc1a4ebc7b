// FileBytes: the bytes of a file, read into memory or mapped. FileSource: a page source that reads
// the objects of one document (.wmk) in place. The document must have its nodes
// (DocumentOptions::nodes).
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

// How the bytes of a file are accessed.
enum class FileAccess : std::uint8_t {
  kRead,  // read into memory once: what happens to the file later has no effect
  kMap,   // mapped and shared with the system's page cache. If another process truncates the file,
          // reading its bytes raises SIGBUS in this one
};

// The memory is freed when the last shared_ptr to it is destroyed. Immutable; any thread.
class FileBytes {
 public:
  // InvalidArgument unless `path` is a regular file: folders, FIFOs, sockets and devices are
  // refused without being opened. NotFound if there is no such file; Unavailable with the system's
  // message if it cannot be opened, read or mapped; ResourceExhausted, under kRead, if it has more
  // than `max_bytes` bytes. Throws std::bad_alloc.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<const FileBytes>> Open(
      const std::string& path, FileAccess access, std::size_t max_bytes);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // The whole file, with the size that it had when it was opened, or less if it was truncated while
  // it was read. An empty file has no bytes.
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  FileBytes() = default;
  std::unique_ptr<std::uint8_t[]> read_;  // null: `bytes_` is a mapping
  std::span<const std::uint8_t> bytes_;
};

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
  [[nodiscard]] bool read_only() const override { return true; }
  // Always Unimplemented.
  [[nodiscard]] absl::Status Put(std::span<const NamedObject> objects, Deadline deadline) override;

 private:
  struct Objects;
  explicit FileSource(std::unique_ptr<Objects> objects);
  const std::unique_ptr<Objects> objects_;  // nodes, their list, chunks and the tail segment
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_FILE_SOURCE_H_
