// MappedFile: the bytes of a file, where the system keeps them.
#ifndef WAYMARK_BLOCKSTORE_WIRE_MAPPED_FILE_H_
#define WAYMARK_BLOCKSTORE_WIRE_MAPPED_FILE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace waymark::wire {

// Unmaps when the last owner goes. Any thread. Another process that cuts the file off makes a
// reader of the bytes receive SIGBUS.
class MappedFile {
 public:
  // NotFound or Unavailable with the system's words when the file cannot be mapped.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(
      const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // All of the file, as long as it was when it was opened.
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  const std::span<const std::uint8_t> bytes_;
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_MAPPED_FILE_H_
