// JsonValue: JSON in little memory. Nested lists of whole numbers, of which routing is made, are
// one dense grid each and not a tree of nodes.
#ifndef WAYMARK_PLUGIN_FORMATS_JSON_VALUE_H_
#define WAYMARK_PLUGIN_FORMATS_JSON_VALUE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin/formats/routing_array.h"

namespace waymark::formats {

// Lists in lists in lists, all regular: every list of a level has as many elements.
struct JsonGrid {
  std::vector<std::int64_t> shape;    // outermost first; one axis: a plain list; {0}: an empty one
  std::vector<std::int32_t> numbers;  // product of `shape`, last axis fastest
};

struct JsonMember;

// One value. Lists that are ragged, mixed, or have numbers beyond int32 are of kind List. A value:
// copy it, move it.
struct JsonValue {
  struct Null {};
  using List = std::vector<JsonValue>;
  using Object = std::vector<JsonMember>;  // keys differ
  std::variant<Null, bool, std::int64_t, double, std::string, JsonGrid, List, Object> value;

  template <class T>
  [[nodiscard]] const T* As() const {
    return std::get_if<T>(&value);
  }
  // The member of that key; null when there is none, or this is no object.
  [[nodiscard]] const JsonValue* Find(std::string_view key) const;
  // "a list", "an object", ...: what errors call it.
  [[nodiscard]] std::string_view KindName() const;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

// Parses one JSON text. InvalidArgument naming the byte: not JSON, nested deeper than 64, a key
// twice in one object. ResourceExhausted beyond the limits. Uses no stack in proportion to the
// input.
[[nodiscard]] absl::StatusOr<JsonValue> ParseJson(std::span<const std::uint8_t> bytes,
                                                  const Limits& limits);

// Walks a JSON pointer (RFC 6901), e.g. "/choices/0/routed_experts". `parent`, if not null, is set
// to the value that holds what was found (null: the root was found). NotFound naming the part that
// is not there.
[[nodiscard]] absl::StatusOr<const JsonValue*> AtPointer(const JsonValue& root,
                                                         std::string_view pointer,
                                                         const JsonValue** parent);

}  // namespace waymark::formats

#endif  // WAYMARK_PLUGIN_FORMATS_JSON_VALUE_H_
