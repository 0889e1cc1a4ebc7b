#include "adapters/formats/base64.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "blockstore/invalid.h"

namespace waymark::formats {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

void AppendBase64(std::span<const std::uint8_t> bytes, std::string& text) {
  text += absl::Base64Escape({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::size_t BytesOfBase64(std::string_view text) {
  return text.size() / 4 * 3 - (text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0);
}

absl::Status DecodeBase64(std::string_view text, const Limits& limits,
                          std::vector<std::uint8_t>& bytes) {
  if (text.size() % 4 != 0) {
    return Invalid("base64: the length must be a multiple of 4; it is ", text.size());
  }
  if (text.size() / 4 * 3 > limits.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("base64: it has ", text.size() / 4 * 3,
                                                     " bytes; the limit is ", limits.max_bytes));
  }
  // Abseil passes over white space, and takes other paddings and ends: then the number of bytes is
  // another one, or the last of them are written in another way.
  std::string decoded;
  const absl::string_view given(text.data(), text.size());
  bool good = absl::Base64Unescape(given, &decoded) && decoded.size() == BytesOfBase64(text);
  if (good && !text.empty()) {
    const std::size_t last = (decoded.size() - 1) / 3 * 3;
    good = absl::Base64Escape(decoded.substr(last)) == given.substr(text.size() - 4);
  }
  if (!good) {
    const std::size_t odd = text.find_first_not_of(kAlphabet);
    const std::string_view rest = text.substr(odd);
    const bool bits = rest == "=" || rest == "==";  // of the character before the padding
    return Invalid("base64: character ", bits ? odd - 1 : odd, " is invalid");
  }
  bytes.assign(decoded.begin(), decoded.end());
  return absl::OkStatus();
}

}  // namespace waymark::formats
