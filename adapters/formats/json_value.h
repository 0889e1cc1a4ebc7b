// ParseJson: JSON texts from outside as values of nlohmann-json, within bounds; and what is read of
// such values. Any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_JSON_VALUE_H_
#define WAYMARK_ADAPTERS_FORMATS_JSON_VALUE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "adapters/formats/routing_array.h"
#include "nlohmann/json.hpp"

namespace waymark::formats {

using Json = nlohmann::json;

// Parses one JSON text; any bytes are safe. InvalidArgument if it is not JSON (naming the byte), is
// nested deeper than 64, or an object has a key twice. ResourceExhausted if the text or its values
// exceed the limits. The stack that it uses does not depend on the text.
[[nodiscard]] absl::StatusOr<Json> ParseJson(std::span<const std::uint8_t> bytes,
                                             const Limits& limits);

// The beginning of a text from outside, quoted and escaped, for an error message of one line.
[[nodiscard]] std::string Shown(std::string_view text);

// "a list", "an object", ...: for error messages.
[[nodiscard]] std::string_view KindName(const Json& value);

// These are null or nullopt for another kind, and where there is no value (null).
[[nodiscard]] const std::string* String(const Json* value);
[[nodiscard]] std::optional<std::int64_t> Integer(const Json* value);
// The integers of a list that has nothing else.
[[nodiscard]] std::optional<std::vector<std::int64_t>> Integers(const Json* value);
// The member of an object.
[[nodiscard]] const Json* Find(const Json* value, std::string_view key);

// Follows a JSON pointer (RFC 6901), e.g. "/choices/0/routed_experts". `parent` is set to the value
// that contains the one found (null if that is the root). NotFound naming the pointer that leads
// nowhere; InvalidArgument if it is no pointer.
[[nodiscard]] absl::StatusOr<const Json*> AtPointer(const Json& root, const std::string& pointer,
                                                    const Json*& parent);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_JSON_VALUE_H_
