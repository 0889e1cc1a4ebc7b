#include "blockstore/wire/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace waymark::wire {
namespace {

absl::Status Failed(const std::string& path, int error) {
  const std::string what =
      absl::StrCat("path: '", path, "' cannot be mapped: ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(what) : absl::UnavailableError(what);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return Failed(path, errno);
  struct stat info {};
  const int bad = fstat(file, &info) != 0 ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
  const auto size = static_cast<std::size_t>(info.st_size);
  void* at = nullptr;
  int error = bad;
  if (bad == 0 && size > 0) {
    at = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) error = errno;
  }
  close(file);
  if (error != 0) return Failed(path, error);
  return std::shared_ptr<const MappedFile>(
      new MappedFile(std::span(static_cast<const std::uint8_t*>(at), at == nullptr ? 0 : size)));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

}  // namespace waymark::wire
