// JsonText, JsonValue: parsed JSON in one list of nodes, which takes little memory and few
// allocations for the nested lists of whole numbers that routing is. Any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_JSON_VALUE_H_
#define WAYMARK_ADAPTERS_FORMATS_JSON_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "adapters/formats/routing_array.h"

namespace waymark::formats {

enum class JsonKind : std::uint8_t { kNull, kTruth, kInteger, kNumber, kString, kList, kObject };

// A value, or the key of a member, which the value of the member follows.
struct JsonNode {
  JsonKind kind = JsonKind::kNull;
  std::uint32_t size = 0;  // elements of a list, members of an object
  // kTruth, kInteger: it. kString: its place in JsonText::strings. kList, kObject: the place of the
  // node behind it. Other numbers are not kept.
  std::int64_t value = 0;
};

// The first node is the root.
struct JsonText {
  std::vector<JsonNode> nodes;
  std::vector<std::string> strings;
};

// A value of a JsonText, which must outlive it; or none: the value where there is no value. A list
// is walked from Following() by Next(), size() times.
class JsonValue {
 public:
  JsonValue() = default;
  explicit JsonValue(const JsonText& text, std::size_t at = 0) : text_(&text), at_(at) {}

  explicit operator bool() const { return text_ != nullptr; }
  friend bool operator==(const JsonValue&, const JsonValue&) = default;

  // REQUIRES of the following: there is a value.
  [[nodiscard]] JsonKind kind() const { return node().kind; }
  // "a list", "an object", ...: for error messages.
  [[nodiscard]] std::string_view KindName() const;
  [[nodiscard]] std::uint32_t size() const { return node().size; }
  // What comes next in the text: of a list with elements the first of them. REQUIRES: not the last.
  [[nodiscard]] JsonValue Following() const { return JsonValue(*text_, at_ + 1); }
  // The element behind this one. REQUIRES: it is an element of a list, and there is one.
  [[nodiscard]] JsonValue Next() const { return JsonValue(*text_, end()); }

  // These are null, nullopt or none for another kind, and where there is no value.
  [[nodiscard]] const std::string* String() const;
  [[nodiscard]] std::optional<std::int64_t> Integer() const;
  [[nodiscard]] std::optional<bool> Truth() const;
  // Those of a list of nothing else.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> Integers() const;
  // The element of a list, or none.
  [[nodiscard]] JsonValue At(std::size_t index) const;
  // The member of an object, or none.
  [[nodiscard]] JsonValue Find(std::string_view key) const;

 private:
  [[nodiscard]] const JsonNode& node() const { return text_->nodes[at_]; }
  [[nodiscard]] std::size_t end() const;

  const JsonText* text_ = nullptr;
  std::size_t at_ = 0;
};

// Parses one JSON text; any bytes are safe. InvalidArgument if it is not JSON (naming the byte), is
// nested deeper than 64, or an object has a key twice or more than 4096 members. ResourceExhausted
// if the text or its values exceed the limits. The stack that it uses does not depend on the text.
[[nodiscard]] absl::StatusOr<JsonText> ParseJson(std::span<const std::uint8_t> bytes,
                                                 const Limits& limits);

// Follows a JSON pointer (RFC 6901), e.g. "/choices/0/routed_experts". `parent` is set to the value
// that contains the one found (none if that is the root). NotFound naming the first token of the
// pointer that leads nowhere; InvalidArgument if the pointer does not begin with "/".
[[nodiscard]] absl::StatusOr<JsonValue> AtPointer(JsonValue root, std::string_view pointer,
                                                  JsonValue& parent);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_JSON_VALUE_H_
