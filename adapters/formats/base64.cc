#include "adapters/formats/base64.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waymark::formats {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kNone = 0xff;

constexpr std::array<std::uint8_t, 256> MakeValues() {
  std::array<std::uint8_t, 256> values{};
  for (std::uint8_t& value : values)
    value = kNone;
  for (std::size_t i = 0; i < kAlphabet.size(); ++i)
    values[static_cast<std::uint8_t>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  return values;
}
constexpr std::array<std::uint8_t, 256> kValues = MakeValues();

std::uint8_t ValueOf(char c) {
  return kValues[static_cast<std::uint8_t>(c)];
}

absl::Status Bad(std::size_t at) {
  return absl::InvalidArgumentError(absl::StrCat("base64: character ", at, " is invalid"));
}

// The error for the first of text[0 ... end) that is not in the alphabet, or else for text[end].
absl::Status FirstBad(std::string_view text, std::size_t end) {
  for (std::size_t at = 0; at < end; ++at) {
    if (ValueOf(text[at]) == kNone) return Bad(at);
  }
  return Bad(end);
}

}  // namespace

void AppendBase64(std::span<const std::uint8_t> bytes, std::string& text) {
  const std::size_t begin = text.size();
  text.resize(begin + (bytes.size() + 2) / 3 * 4, '=');
  char* out = text.data() + begin;
  std::size_t at = 0;
  for (; at + 3 <= bytes.size(); at += 3, out += 4) {
    const std::uint32_t three =
        (std::uint32_t{bytes[at]} << 16) | (std::uint32_t{bytes[at + 1]} << 8) | bytes[at + 2];
    out[0] = kAlphabet[three >> 18];
    out[1] = kAlphabet[(three >> 12) & 63];
    out[2] = kAlphabet[(three >> 6) & 63];
    out[3] = kAlphabet[three & 63];
  }
  const std::size_t left = bytes.size() - at;
  if (left == 0) return;
  const std::uint32_t last =
      (std::uint32_t{bytes[at]} << 16) | (left == 2 ? std::uint32_t{bytes[at + 1]} << 8 : 0);
  out[0] = kAlphabet[last >> 18];
  out[1] = kAlphabet[(last >> 12) & 63];
  if (left == 2) out[2] = kAlphabet[(last >> 6) & 63];
}

absl::StatusOr<std::vector<std::uint8_t>> DecodeBase64(std::string_view text,
                                                       const Limits& limits) {
  if (text.size() % 4 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("base64: the length must be a multiple of 4; it is ", text.size()));
  }
  if (text.size() / 4 * 3 > limits.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("base64: it has ", text.size() / 4 * 3,
                                                     " bytes; the limit is ", limits.max_bytes));
  }
  std::vector<std::uint8_t> bytes;
  if (text.empty()) return bytes;
  const std::size_t padding = text.back() != '=' ? 0 : text[text.size() - 2] != '=' ? 1 : 2;
  const std::size_t whole = text.size() - (padding == 0 ? 0 : 4);
  bytes.resize(text.size() / 4 * 3 - padding);
  std::uint8_t* out = bytes.data();
  std::uint8_t seen = 0;  // 64 or more: a character is not in the alphabet
  for (std::size_t at = 0; at < whole; at += 4, out += 3) {
    const std::uint8_t a = ValueOf(text[at]);
    const std::uint8_t b = ValueOf(text[at + 1]);
    const std::uint8_t c = ValueOf(text[at + 2]);
    const std::uint8_t d = ValueOf(text[at + 3]);
    seen |= a | b | c | d;
    const std::uint32_t three =
        (std::uint32_t{a} << 18) | (std::uint32_t{b} << 12) | (std::uint32_t{c} << 6) | d;
    out[0] = static_cast<std::uint8_t>(three >> 16);
    out[1] = static_cast<std::uint8_t>(three >> 8);
    out[2] = static_cast<std::uint8_t>(three);
  }
  if (seen >= 64) return FirstBad(text, whole);
  if (padding == 0) return bytes;
  const std::uint8_t a = ValueOf(text[whole]);
  const std::uint8_t b = ValueOf(text[whole + 1]);
  const std::uint8_t c = padding == 2 ? 0 : ValueOf(text[whole + 2]);
  if ((a | b | c) >= 64) return FirstBad(text, text.size() - padding);
  // The unused bits must be zero, so that no two texts encode the same bytes.
  if (padding == 2 ? (b & 15) != 0 : (c & 3) != 0) return Bad(text.size() - padding - 1);
  out[0] = static_cast<std::uint8_t>((a << 2) | (b >> 4));
  if (padding == 1) out[1] = static_cast<std::uint8_t>((b << 4) | (c >> 2));
  return bytes;
}

}  // namespace waymark::formats
