#include "adapters/formats/json_value.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "blockstore/invalid.h"

namespace waymark::formats {
namespace {

constexpr int kMostDepth = 64;
// Lists grow by doubling; a key is kept twice.
constexpr std::size_t kValueBytes = 2 * sizeof(Json);
constexpr std::size_t kStringBytes = kValueBytes + 2 * sizeof(std::string);

// Cuts the long strings out of a text before it is parsed. Base64 of ids is one string of
// megabytes, and a parser that looks for escapes character by character takes longer on it than
// decoding does.
class LongStrings {
 public:
  // `text` must outlive this object. If it is not JSON, text() is not JSON either.
  explicit LongStrings(std::string_view text);

  // The text with "" instead of each string that was cut out: those of kLong printable characters
  // and more, without escapes, which need no decoding, and which are no keys.
  [[nodiscard]] std::string_view text() const { return cuts_.empty() ? whole_ : text_; }
  // The characters of string number `index` of the text (keys are counted too) if it was cut out,
  // else an empty view.
  [[nodiscard]] std::string_view Taken(std::size_t index) const {
    const auto found =
        std::lower_bound(cuts_.begin(), cuts_.end(), index,
                         [](const Cut& cut, std::size_t of) { return cut.index < of; });
    return found != cuts_.end() && found->index == index ? found->characters : std::string_view();
  }
  // The offset in the whole text of the character at offset `at` of text().
  [[nodiscard]] std::size_t PositionOf(std::size_t at) const {
    std::size_t position = at;
    for (const Cut& cut : cuts_)
      position += cut.position <= at ? cut.characters.size() : 0;
    return position;
  }

 private:
  static constexpr std::size_t kLong = 256;  // shorter ones are parsed as fast
  struct Cut {
    std::size_t index;            // the string's number among all strings of the text
    std::size_t position;         // its offset in text_
    std::string_view characters;  // in whole_
  };
  std::string_view whole_;
  std::string text_;
  std::vector<Cut> cuts_;  // in the order of the text
};

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
std::size_t EndOfString(std::string_view text, std::size_t at) {
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

// Whether the string that ends with this quote is the key of a member.
bool IsKey(std::string_view text, std::size_t quote) {
  const std::size_t next = text.find_first_not_of(" \t\r\n", quote + 1);
  return next != std::string_view::npos && text[next] == ':';
}

LongStrings::LongStrings(std::string_view text) : whole_(text) {
  std::size_t kept = 0;  // the text before this index has been copied to text_
  std::size_t at = text.find('"');
  for (std::size_t index = 0; at != std::string_view::npos; ++index) {
    const std::size_t begin = at + 1;
    const std::size_t end = EndOfString(text, begin);
    if (end == std::string_view::npos) break;
    const std::string_view characters = text.substr(begin, end - begin);
    if (characters.size() >= kLong && NeedsNoDecoding(characters) && !IsKey(text, end)) {
      text_.append(text, kept, begin - kept);
      kept = end;
      cuts_.push_back({index, text_.size(), characters});
    }
    at = text.find('"', end + 1);
  }
  if (!cuts_.empty()) text_.append(text, kept);
}

// What the parser calls with every value and key: puts back what was cut out, and keeps nothing
// more once a bound is exceeded.
class Parsing {
 public:
  Parsing(const LongStrings& strings, const Limits& limits) : strings_(strings), limits_(limits) {}

  [[nodiscard]] const absl::Status& status() const { return status_; }

  // Whether it is kept.
  bool Take(int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (!status_.ok()) return false;
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::object_end || event == Event::array_end) return true;
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= kMostDepth) status_ = Invalid("JSON: nested deeper than ", kMostDepth);
      return Charge(kValueBytes);
    }
    if (!value.is_string()) return Charge(kValueBytes);
    auto& text = value.get_ref<std::string&>();
    const std::string_view taken = strings_.Taken(num_strings_++);
    if (!taken.empty()) text = taken;
    if (event == Event::key && !keys_.back().insert(text).second) {
      status_ = Invalid("JSON: key ", Shown(text), " is twice in one object");
    }
    return Charge(kStringBytes + text.size());
  }

 private:
  bool Charge(std::size_t bytes) {
    if (bytes > limits_.max_bytes - used_) {
      status_.Update(absl::ResourceExhaustedError(absl::StrCat(
          "JSON: its values take more than the limit of ", limits_.max_bytes, " bytes")));
    } else {
      used_ += bytes;
    }
    return status_.ok();
  }

  const LongStrings& strings_;
  const Limits limits_;
  absl::Status status_;
  std::size_t used_ = 0;
  std::size_t num_strings_ = 0;              // so far, keys too
  std::vector<std::set<std::string>> keys_;  // of the objects that are not closed yet
};

}  // namespace

std::string Shown(std::string_view text) {
  constexpr std::size_t kShown = 64;
  return absl::StrCat("'", absl::CHexEscape(std::string(text.substr(0, kShown))),
                      text.size() > kShown ? "...'" : "'");
}

std::string_view KindName(const Json& value) {
  static constexpr std::pair<Json::value_t, std::string_view> kNames[] = {
      {Json::value_t::null, "null"},
      {Json::value_t::boolean, "a truth value"},
      {Json::value_t::string, "a string"},
      {Json::value_t::array, "a list"},
      {Json::value_t::object, "an object"}};
  for (const auto& [kind, name] : kNames) {
    if (value.type() == kind) return name;
  }
  return Integer(&value).has_value() ? "a whole number" : "a number";
}

const std::string* String(const Json* value) {
  return value == nullptr ? nullptr : value->get_ptr<const std::string*>();
}

std::optional<std::int64_t> Integer(const Json* value) {
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  const auto number = value->get<std::int64_t>();
  if (value->is_number_unsigned() && number < 0) return std::nullopt;  // does not fit
  return number;
}

std::optional<std::vector<std::int64_t>> Integers(const Json* value) {
  if (value == nullptr || !value->is_array()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const Json& element : *value) {
    const std::optional<std::int64_t> number = Integer(&element);
    if (!number.has_value()) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

const Json* Find(const Json* value, std::string_view key) {
  if (value == nullptr || !value->is_object()) return nullptr;
  const auto found = value->find(key);
  return found == value->end() ? nullptr : &*found;
}

absl::StatusOr<Json> ParseJson(std::span<const std::uint8_t> bytes, const Limits& limits) {
  // Checked first, because the parser copies a string of any length.
  if (bytes.size() > limits.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("JSON: the text has ", bytes.size(),
                                                     " bytes; the limit is ", limits.max_bytes));
  }
  const LongStrings strings({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  Parsing parsing(strings, limits);
  try {
    Json value =
        Json::parse(strings.text(), [&](int depth, Json::parse_event_t event, Json& parsed) {
          return parsing.Take(depth, event, parsed);
        });
    if (!parsing.status().ok()) return parsing.status();
    return value;
  } catch (const Json::parse_error& error) {
    if (!parsing.status().ok()) return parsing.status();
    return Invalid("JSON: byte ", strings.PositionOf(error.byte),
                   ": not JSON, or the text is incomplete");
  } catch (const Json::exception&) {  // of a number that no double holds
    if (!parsing.status().ok()) return parsing.status();
    return absl::InvalidArgumentError("JSON: a number is larger than any that can be kept");
  }
}

absl::StatusOr<const Json*> AtPointer(const Json& root, const std::string& pointer,
                                      const Json*& parent) {
  parent = nullptr;
  try {
    const Json::json_pointer path(pointer);
    if (!path.empty()) parent = &root.at(path.parent_pointer());
    return &root.at(path);
  } catch (const Json::exception& error) {
    if (error.id == 107 || error.id == 108) {  // of the pointer itself: no '/', a wrong '~'
      return Invalid("JSON: a pointer must begin with '/', and '~' be written ~0; it is ",
                     Shown(pointer));
    }
    return absl::NotFoundError(absl::StrCat("JSON: nothing is at ", Shown(pointer)));
  }
}

}  // namespace waymark::formats
