// JsonValue: parsed JSON that takes little memory. Nested lists of whole numbers, which is what
// routing is, become one dense array and not a tree of nodes. Any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_JSON_VALUE_H_
#define WAYMARK_ADAPTERS_FORMATS_JSON_VALUE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "adapters/formats/routing_array.h"

namespace waymark::formats {

// Regular nested lists of whole numbers within int32: all lists of a level have the same length.
struct JsonGrid {
  std::vector<std::int64_t> shape;    // outermost first; {n}: a plain list; {0}: an empty one
  std::vector<std::int32_t> numbers;  // the product of `shape` of them, last axis fastest
};

struct JsonMember;

// One JSON value. A list is a JsonGrid if it can be, and else a List (if it is ragged, has elements
// of several kinds, or numbers beyond int32). Copies are deep.
struct JsonValue {
  struct Null {};
  using List = std::vector<JsonValue>;
  using Object = std::vector<JsonMember>;  // keys differ
  std::variant<Null, bool, std::int64_t, double, std::string, JsonGrid, List, Object> value;

  // The value if it is a T, else null.
  template <class T>
  [[nodiscard]] const T* As() const {
    return std::get_if<T>(&value);
  }
  // The member with this key; null if there is none or this is not an object.
  [[nodiscard]] const JsonValue* Find(std::string_view key) const;
  // "a list", "an object", ...: the kind of the value, for error messages.
  [[nodiscard]] std::string_view KindName() const;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

// Parses one JSON text; any bytes are safe. InvalidArgument if it is not JSON (naming the byte), is
// nested deeper than 64, or an object has a key twice or more than 4096 members. ResourceExhausted
// if the text or its values exceed the limits. The stack that it uses does not depend on the text.
[[nodiscard]] absl::StatusOr<JsonValue> ParseJson(std::span<const std::uint8_t> bytes,
                                                  const Limits& limits);

// Follows a JSON pointer (RFC 6901), e.g. "/choices/0/routed_experts". `parent`, if not null, is
// set to the value that contains the one found (null if that is the root). The results point into
// `root`. NotFound naming the first token of the pointer that leads nowhere; InvalidArgument if the
// pointer does not begin with "/".
[[nodiscard]] absl::StatusOr<const JsonValue*> AtPointer(const JsonValue& root,
                                                         std::string_view pointer,
                                                         const JsonValue** parent);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_JSON_VALUE_H_
