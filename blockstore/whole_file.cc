#include "blockstore/whole_file.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace waymark {

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, std::size_t limit) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::string bytes;
  std::error_code unknown;
  const std::uintmax_t size = std::filesystem::file_size(path, unknown);
  if (!unknown && size <= limit) bytes.reserve(static_cast<std::size_t>(size) + kPiece);
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  for (std::size_t got = kPiece; file != nullptr && got > 0 && bytes.size() <= limit;) {
    const std::size_t end = bytes.size();
    bytes.resize(end + kPiece);
    got = std::fread(bytes.data() + end, 1, kPiece, file);
    bytes.resize(end + got);
  }
  if (file == nullptr || std::ferror(file) != 0) {
    const std::string error = std::strerror(errno);
    if (file != nullptr) std::fclose(file);
    return absl::NotFoundError(absl::StrCat("'", path, "' cannot be read: ", error));
  }
  std::fclose(file);
  if (bytes.size() <= limit) return bytes;
  return absl::ResourceExhaustedError(
      absl::StrCat("'", path, "' has more than ", limit, " bytes, the most that may be read"));
}

absl::Status WriteWholeFile(const std::string& path, std::string_view bytes) {
  const std::string partial = path + ".partial";
  std::FILE* const file = std::fopen(partial.c_str(), "wb");
  bool written = file != nullptr;
  if (written) written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (file != nullptr) written = (std::fclose(file) == 0) && written;
  if (written) written = std::rename(partial.c_str(), path.c_str()) == 0;
  if (written) return absl::OkStatus();
  const std::string error = std::strerror(errno);
  if (file != nullptr) std::remove(partial.c_str());
  return absl::UnavailableError(absl::StrCat("'", path, "' cannot be written: ", error));
}

}  // namespace waymark
