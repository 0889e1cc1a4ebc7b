#include "blockstore/wire/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "blockstore/huge_pages.h"
#include "blockstore/invalid.h"

namespace waymark::wire {
namespace {

absl::Status Failed(const std::string& path, int error) {
  const std::string what =
      absl::StrCat("path: '", path, "' cannot be read: ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(what) : absl::UnavailableError(what);
}

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::Status CheckRegular(const std::string& path, const struct stat& info) {
  if (S_ISREG(info.st_mode)) return absl::OkStatus();
  return Invalid("path: '", path, "' must be a regular file; it is ", KindOf(info.st_mode));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const FileBytes>> FileBytes::Open(const std::string& path,
                                                                 FileAccess access,
                                                                 std::size_t max_bytes) {
  // Before it is opened, because that alone may block, or start a device.
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return Failed(path, errno);
  if (absl::Status status = CheckRegular(path, info); !status.ok()) return status;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return Failed(path, errno);
  struct Closed {
    ~Closed() { close(file); }
    const int file;
  } const closed{file};
  if (fstat(file, &info) != 0) return Failed(path, errno);
  if (absl::Status status = CheckRegular(path, info); !status.ok()) return status;

  std::shared_ptr<FileBytes> made(new FileBytes);
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return made;
  if (access == FileAccess::kMap) {
    void* const at = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return Failed(path, errno);
    made->bytes_ = {static_cast<const std::uint8_t*>(at), size};
    return made;
  }
  if (size > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("path: '", path, "' must have at most max_bytes = ", max_bytes,
                     " bytes to be read into memory; it has ", size));
  }
  made->read_.reset(new std::uint8_t[size]);
  AskForHugePages(made->read_.get(), size);
  std::size_t got = 0;
  while (got < size) {
    const ssize_t n = read(file, made->read_.get() + got, size - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(path, errno);
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  made->bytes_ = {made->read_.get(), got};
  return made;
}

FileBytes::~FileBytes() {
  if (read_ == nullptr && !bytes_.empty())
    munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

}  // namespace waymark::wire
