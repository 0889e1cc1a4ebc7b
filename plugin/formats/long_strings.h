// LongStrings: the long strings of a JSON text, taken out of it before it is parsed. Base64 of ids
// is one string of megabytes, at which a parser that looks for escapes character by character
// spends more than decoding it takes.
#ifndef WAYMARK_PLUGIN_FORMATS_LONG_STRINGS_H_
#define WAYMARK_PLUGIN_FORMATS_LONG_STRINGS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace waymark::formats {

class LongStrings {
 public:
  // Strings of fewer characters stay: a parser is as fast.
  static constexpr std::size_t kLong = 256;

  // `text` outlives this. It may be anything: what is not JSON is none without its strings either.
  explicit LongStrings(std::string_view text);

  // The text with "" for each string that was taken out. A string is taken out when it is long and
  // has no escapes and nothing but printable ASCII, so that it stands for itself.
  [[nodiscard]] std::string_view text() const { return taken_.empty() ? whole_ : text_; }
  // The characters of string `index` of the text, keys counted, if it was taken out; else empty.
  [[nodiscard]] std::string_view Taken(std::size_t index) const;
  // The place in the whole text of place `at` in text().
  [[nodiscard]] std::size_t PlaceOf(std::size_t at) const;

 private:
  struct String {
    std::size_t index;  // among all strings of the text
    std::size_t place;  // of the first character, were it still in text_
    std::string_view characters;
  };
  std::string_view whole_;
  std::string text_;           // empty unless something was taken out
  std::vector<String> taken_;  // in order
};

}  // namespace waymark::formats

#endif  // WAYMARK_PLUGIN_FORMATS_LONG_STRINGS_H_
