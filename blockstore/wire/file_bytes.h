// FileBytes: the bytes of a file, read into memory or mapped.
#ifndef WAYMARK_BLOCKSTORE_WIRE_FILE_BYTES_H_
#define WAYMARK_BLOCKSTORE_WIRE_FILE_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

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

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_FILE_BYTES_H_
