// LongStrings: cuts the long strings out of a JSON text before it is parsed. Base64 of ids is one
// string of megabytes, and a parser that looks for escapes character by character takes longer on
// it than decoding does. Internal to this folder.
#ifndef WAYMARK_ADAPTERS_FORMATS_LONG_STRINGS_H_
#define WAYMARK_ADAPTERS_FORMATS_LONG_STRINGS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace waymark::formats {

class LongStrings {
 public:
  // Shorter strings are not cut out: parsing them is as fast.
  static constexpr std::size_t kLong = 256;

  // `text` must outlive this object. It may be any text: if it is not JSON, text() is not JSON
  // either.
  explicit LongStrings(std::string_view text);

  // The text with "" instead of each string that was cut out. A string is cut out if it has at
  // least kLong characters, all printable ASCII, and no escapes: it then needs no decoding.
  [[nodiscard]] std::string_view text() const { return taken_.empty() ? whole_ : text_; }
  // The characters of string number `index` of the text (keys are counted too) if it was cut out,
  // else an empty view. Points into the text that the constructor was given.
  [[nodiscard]] std::string_view Taken(std::size_t index) const;
  // The offset in the whole text of the character at offset `at` of text().
  [[nodiscard]] std::size_t PositionOf(std::size_t at) const;

 private:
  // A string that was cut out.
  struct String {
    std::size_t index;            // its number among all strings of the text
    std::size_t position;         // the offset in text_ at which it was cut out
    std::string_view characters;  // in whole_
  };
  std::string_view whole_;
  std::string text_;           // empty unless a string was cut out
  std::vector<String> taken_;  // in the order of the text
};

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_LONG_STRINGS_H_
