// MappedFile: the bytes of a file, mapped read-only and shared with the system's page cache.
#ifndef WAYMARK_BLOCKSTORE_WIRE_MAPPED_FILE_H_
#define WAYMARK_BLOCKSTORE_WIRE_MAPPED_FILE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace waymark::wire {

// The file is unmapped when the last shared_ptr to it is destroyed. Any thread. If another process
// truncates the file, reading bytes() raises SIGBUS.
class MappedFile {
 public:
  // NotFound if there is no such file; Unavailable with the system's message if it cannot be opened
  // or mapped (a folder cannot). An empty file has no bytes.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(
      const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // The whole file, with the size that it had when it was opened.
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  const std::span<const std::uint8_t> bytes_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_MAPPED_FILE_H_
