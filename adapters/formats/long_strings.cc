#include "adapters/formats/long_strings.h"

#include <algorithm>
#include <cstdint>

namespace waymark::formats {
namespace {

bool NeedsNoDecoding(std::string_view characters) {
  std::uint8_t odd = 0;  // without branches, so that the loop vectorises
  for (const char c : characters) {
    const auto byte = static_cast<std::uint8_t>(c);
    odd |= static_cast<std::uint8_t>(static_cast<std::uint8_t>(byte - ' ') > '~' - ' ');
    odd |= static_cast<std::uint8_t>(byte == '\\');
  }
  return odd == 0;
}

// The index of the quote that ends the string whose first character is at `at`; npos if none does.
std::size_t EndOf(std::string_view text, std::size_t at) {
  std::size_t quote = text.find('"', at);
  while (quote != std::string_view::npos) {
    const std::size_t escape = text.substr(at, quote - at).find('\\');
    if (escape == std::string_view::npos) return quote;
    at += escape + 2;  // the escaped character may be that quote
    // Searches again only if needed: a text of escapes would otherwise be read once per escape.
    if (at > quote) quote = text.find('"', at);
  }
  return quote;
}

}  // namespace

LongStrings::LongStrings(std::string_view text) : whole_(text) {
  std::size_t kept = 0;  // the text before this index has been copied to text_
  std::size_t at = text.find('"');
  for (std::size_t index = 0; at != std::string_view::npos; ++index) {
    const std::size_t begin = at + 1;
    const std::size_t end = EndOf(text, begin);
    if (end == std::string_view::npos) break;
    const std::string_view characters = text.substr(begin, end - begin);
    if (characters.size() >= kLong && NeedsNoDecoding(characters)) {
      text_.append(text, kept, begin - kept);
      kept = end;
      taken_.push_back({index, text_.size(), characters});
    }
    at = text.find('"', end + 1);
  }
  if (!taken_.empty()) text_.append(text, kept);
}

std::string_view LongStrings::Taken(std::size_t index) const {
  const auto found =
      std::lower_bound(taken_.begin(), taken_.end(), index,
                       [](const String& string, std::size_t of) { return string.index < of; });
  return found != taken_.end() && found->index == index ? found->characters : std::string_view();
}

std::size_t LongStrings::PositionOf(std::size_t at) const {
  std::size_t position = at;
  for (const String& string : taken_) {
    if (string.position > at) break;
    position += string.characters.size();
  }
  return position;
}

}  // namespace waymark::formats
