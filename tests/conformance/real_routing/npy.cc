#include "tests/conformance/real_routing/npy.h"

#include <cctype>
#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waymark {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(".npy: ", what));
}

// What follows "'key':" in the header's dictionary, without leading spaces; empty when there is
// none.
std::string ValueOf(const std::string& header, const std::string& key) {
  const std::size_t at = header.find("'" + key + "':");
  if (at == std::string::npos) return "";
  const std::size_t value = header.find_first_not_of(' ', at + key.size() + 3);
  return value == std::string::npos ? "" : header.substr(value);
}

}  // namespace

absl::StatusOr<ByteArray> ParseNpy(const std::string& bytes) {
  if (bytes.size() < 10 || bytes.compare(0, 6, "\x93NUMPY") != 0) return Bad("not an .npy file");
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(bytes[at]); };
  const int version = byte(6);
  if (version != 1 && version != 2) return Bad(absl::StrCat("format version ", version));
  const std::size_t start = version == 1 ? 10 : 12;
  if (bytes.size() < start) return Bad("it ends inside its head");
  std::size_t length = byte(8) | (std::size_t{byte(9)} << 8);
  if (version == 2) length |= (std::size_t{byte(10)} << 16) | (std::size_t{byte(11)} << 24);
  if (length > bytes.size() - start) return Bad("it ends inside its head");
  const std::string header = bytes.substr(start, length);

  if (const std::string dtype = ValueOf(header, "descr").substr(0, 5);
      dtype != "'|u1'" && dtype != "'u1', " && dtype != "'<u1'") {
    return Bad("the dtype is not uint8");
  }
  if (ValueOf(header, "fortran_order").rfind("False", 0) != 0) return Bad("not in C order");
  const std::string shape = ValueOf(header, "shape");
  if (shape.empty() || shape[0] != '(') return Bad("no shape");
  ByteArray array;
  std::size_t total = 1;
  std::size_t at = 1;
  for (; at < shape.size() && shape[at] != ')';) {
    if (shape[at] == ' ' || shape[at] == ',') {
      ++at;
      continue;
    }
    if (std::isdigit(static_cast<unsigned char>(shape[at])) == 0)
      return Bad("a shape of no numbers");
    std::size_t dimension = 0;
    for (; at < shape.size() && std::isdigit(static_cast<unsigned char>(shape[at])) != 0; ++at) {
      dimension = dimension * 10 + static_cast<std::size_t>(shape[at] - '0');
      if (dimension > kMaxBytes) return Bad("a shape that is too large");
    }
    if (dimension != 0 && total > kMaxBytes / dimension) return Bad("a shape that is too large");
    total *= dimension;
    array.shape.push_back(dimension);
  }
  if (at >= shape.size()) return Bad("a shape without end");
  if (bytes.size() - start - length != total) {
    return Bad(absl::StrCat("a shape of ", total, " bytes, and ", bytes.size() - start - length,
                            " bytes of data"));
  }
  array.data.assign(bytes.begin() + static_cast<std::ptrdiff_t>(start + length), bytes.end());
  return array;
}

absl::StatusOr<ByteArray> ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("'", path, "' cannot be read"));
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  absl::StatusOr<ByteArray> array = ParseNpy(bytes);
  if (!array.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "': ", std::string(array.status().message())));
  }
  return array;
}

}  // namespace waymark
