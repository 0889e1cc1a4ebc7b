#include "adapters/formats/json_value.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "blockstore/invalid.h"
#include "nlohmann/json.hpp"

namespace waymark::formats {
namespace {

constexpr std::size_t kMostDepth = 64;
constexpr std::size_t kMostMembers = 4096;
// Lists of nodes and strings grow by doubling.
constexpr std::size_t kNodeBytes = 2 * sizeof(JsonNode);
constexpr std::size_t kStringBytes = 2 * sizeof(std::string);

// The beginning of a text from outside, escaped, for an error message of one line.
std::string Shown(std::string_view text) {
  constexpr std::size_t kShown = 40;
  return absl::StrCat("'", absl::CHexEscape(std::string(text.substr(0, kShown))), "'");
}

// Cuts the long strings out of a text before it is parsed. Base64 of ids is one string of
// megabytes, and a parser that looks for escapes character by character takes longer on it than
// decoding does.
class LongStrings {
 public:
  // `text` must outlive this object. If it is not JSON, text() is not JSON either.
  explicit LongStrings(std::string_view text);

  // The text with "" instead of each string that was cut out: those of kLong printable characters
  // and more, without escapes, which need no decoding.
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

LongStrings::LongStrings(std::string_view text) : whole_(text) {
  std::size_t kept = 0;  // the text before this index has been copied to text_
  std::size_t at = text.find('"');
  for (std::size_t index = 0; at != std::string_view::npos; ++index) {
    const std::size_t begin = at + 1;
    const std::size_t end = EndOfString(text, begin);
    if (end == std::string_view::npos) break;
    const std::string_view characters = text.substr(begin, end - begin);
    if (characters.size() >= kLong && NeedsNoDecoding(characters)) {
      text_.append(text, kept, begin - kept);
      kept = end;
      cuts_.push_back({index, text_.size(), characters});
    }
    at = text.find('"', end + 1);
  }
  if (!cuts_.empty()) text_.append(text, kept);
}

class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(const LongStrings& strings, const Limits& limits) : strings_(strings), limits_(limits) {}

  [[nodiscard]] const absl::Status& status() const { return status_; }
  JsonText TakeText() { return std::move(text_); }

  bool null() override { return Add(JsonKind::kNull); }
  bool boolean(bool value) override { return Add(JsonKind::kTruth, value ? 1 : 0); }
  bool number_integer(number_integer_t value) override { return Add(JsonKind::kInteger, value); }
  bool number_unsigned(number_unsigned_t value) override {
    const bool fits = value <= std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    return fits ? Add(JsonKind::kInteger, static_cast<std::int64_t>(value))
                : Add(JsonKind::kNumber);
  }
  bool number_float(number_float_t, const string_t&) override { return Add(JsonKind::kNumber); }
  bool string(string_t& value) override { return AddString(value); }
  bool binary(binary_t&) override { return Fail(absl::InvalidArgumentError("JSON: binary")); }
  bool start_object(std::size_t) override { return Open(JsonKind::kObject); }
  bool key(string_t& value) override {
    if (!AddString(value)) return false;
    const std::size_t object = open_.back();
    if (JsonValue(text_, object).Find(text_.strings.back())) {
      return Fail(Invalid("JSON: key ", Shown(text_.strings.back()), " is twice in one object"));
    }
    // Keys are compared one by one, since objects of routing have few.
    if (text_.nodes[object].size == kMostMembers) {
      return Fail(Invalid("JSON: an object must have at most ", kMostMembers, " members"));
    }
    ++text_.nodes[object].size;
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(JsonKind::kList); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(Invalid("JSON: byte ", strings_.PositionOf(position),
                        ": not JSON, or the text is incomplete"));
  }

 private:
  bool Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool Charge(std::size_t bytes) {
    if (bytes > limits_.max_bytes - used_) {
      return Fail(absl::ResourceExhaustedError(absl::StrCat(
          "JSON: its values take more than the limit of ", limits_.max_bytes, " bytes")));
    }
    used_ += bytes;
    return true;
  }
  bool Add(JsonKind kind, std::int64_t value = 0) {
    if (!Charge(kNodeBytes)) return false;
    if (!open_.empty() && text_.nodes[open_.back()].kind == JsonKind::kList) {
      ++text_.nodes[open_.back()].size;
    }
    text_.nodes.push_back({kind, 0, value});
    return true;
  }
  bool AddString(std::string& value) {
    const std::string_view taken = strings_.Taken(text_.strings.size());
    if (!taken.empty()) value = taken;
    if (!Charge(kStringBytes + value.size())) return false;
    text_.strings.push_back(std::move(value));
    return Add(JsonKind::kString, static_cast<std::int64_t>(text_.strings.size()) - 1);
  }
  bool Open(JsonKind kind) {
    if (open_.size() == kMostDepth) {
      return Fail(Invalid("JSON: nested deeper than ", kMostDepth));
    }
    if (!Add(kind)) return false;
    open_.push_back(text_.nodes.size() - 1);
    return true;
  }
  bool Close() {
    text_.nodes[open_.back()].value = static_cast<std::int64_t>(text_.nodes.size());
    open_.pop_back();
    return true;
  }

  const LongStrings& strings_;
  const Limits limits_;
  std::size_t used_ = 0;
  std::vector<std::size_t> open_;  // nodes of lists and objects that are not closed yet
  JsonText text_;
  absl::Status status_;
};

}  // namespace

std::string_view JsonValue::KindName() const {
  static constexpr std::string_view kNames[] = {
      "null", "a truth value", "a whole number", "a number", "a string", "a list", "an object"};
  return kNames[static_cast<std::size_t>(kind())];
}

std::size_t JsonValue::end() const {
  return kind() >= JsonKind::kList ? static_cast<std::size_t>(node().value) : at_ + 1;
}

const std::string* JsonValue::String() const {
  if (text_ == nullptr || kind() != JsonKind::kString) return nullptr;
  return &text_->strings[static_cast<std::size_t>(node().value)];
}

std::optional<std::int64_t> JsonValue::Integer() const {
  if (text_ == nullptr || kind() != JsonKind::kInteger) return std::nullopt;
  return node().value;
}

std::optional<bool> JsonValue::Truth() const {
  if (text_ == nullptr || kind() != JsonKind::kTruth) return std::nullopt;
  return node().value != 0;
}

std::optional<std::vector<std::int64_t>> JsonValue::Integers() const {
  if (text_ == nullptr || kind() != JsonKind::kList) return std::nullopt;
  std::vector<std::int64_t> numbers;
  JsonValue element = *this;
  for (std::uint32_t i = 0; i < size(); ++i) {
    element = element.Following();
    if (element.kind() != JsonKind::kInteger) return std::nullopt;
    numbers.push_back(element.node().value);
  }
  return numbers;
}

JsonValue JsonValue::At(std::size_t index) const {
  if (text_ == nullptr || kind() != JsonKind::kList || index >= size()) return {};
  JsonValue element = Following();
  for (; index > 0; --index)
    element = element.Next();
  return element;
}

JsonValue JsonValue::Find(std::string_view key) const {
  if (text_ == nullptr || kind() != JsonKind::kObject) return {};
  JsonValue name(*text_, at_ + 1);
  for (std::uint32_t i = 0; i < size(); ++i) {
    const JsonValue member = name.Next();
    if (*name.String() == key) return member;
    name = member.Next();
  }
  return {};
}

absl::StatusOr<JsonText> ParseJson(std::span<const std::uint8_t> bytes, const Limits& limits) {
  // Checked first, because the parser copies a string of any length.
  if (bytes.size() > limits.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("JSON: the text has ", bytes.size(),
                                                     " bytes; the limit is ", limits.max_bytes));
  }
  const LongStrings strings({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  Builder builder(strings, limits);
  const std::string_view text = strings.text();
  const bool parsed = nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &builder);
  if (!builder.status().ok()) return builder.status();
  if (!parsed) return absl::InvalidArgumentError("JSON: not JSON");
  return builder.TakeText();
}

absl::StatusOr<JsonValue> AtPointer(JsonValue root, std::string_view pointer, JsonValue& parent) {
  JsonValue value = root;
  parent = {};
  if (pointer.empty()) return value;
  if (pointer[0] != '/') {
    return Invalid("JSON: a pointer must begin with '/'; it is ", Shown(pointer));
  }
  for (const std::string& part :
       std::vector<std::string>(absl::StrSplit(std::string(pointer.substr(1)), '/'))) {
    parent = value;
    if (parent.kind() == JsonKind::kList) {
      std::size_t index = part.empty() || part.size() > 9 ? parent.size() : 0;
      for (const char c : part)
        index = c < '0' || c > '9' ? parent.size() : index * 10 + static_cast<std::size_t>(c - '0');
      value = parent.At(index);
    } else {
      value = parent.Find(absl::StrReplaceAll(part, {{"~1", "/"}, {"~0", "~"}}));
    }
    if (!value) {
      return absl::NotFoundError(
          absl::StrCat("JSON: there is no ", Shown(part), " of ", Shown(pointer)));
    }
  }
  return value;
}

}  // namespace waymark::formats
