// Payloads: arrays as the strings, lists and small objects in JSON responses of engines. The Read
// functions are safe on any text; their errors are InvalidArgument naming what is wrong, the rule
// and the value, and ResourceExhausted beyond the limits. The Append functions append to `text`.
// Any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_PAYLOADS_H_
#define WAYMARK_ADAPTERS_FORMATS_PAYLOADS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "adapters/formats/json_value.h"
#include "adapters/formats/routing_array.h"

namespace waymark::formats {

// The first characters of base64 of an .npy file, and of the envelope below.
inline constexpr std::string_view kNpyTextStart = "k05VTVBZ";
inline constexpr std::string_view kEnvelopeStart = "nrlre1:";

// Nested lists, [rows][layers][top_k]. InvalidArgument naming the first list that is not as long as
// those before it, or the first number that `dtype` does not have.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadLists(JsonValue lists, Dtype dtype,
                                                     const Limits& limits);
// Without white space.
void AppendLists(const RoutingArray& array, std::string& text);

// Base64 of the ids alone, [rows, layers, top_k] in C order. The number of rows follows from the
// length; InvalidArgument unless it is a whole number of rows.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadRawText(std::string_view text, Dtype dtype,
                                                       std::int32_t layers, std::int32_t top_k,
                                                       const Limits& limits);

// The envelope "nrlre1:<dtype>:<rows>x<layers>x<top_k>:<base64 of the ids>".
[[nodiscard]] absl::StatusOr<RoutingArray> ReadEnvelope(std::string_view text,
                                                        const Limits& limits);
void AppendEnvelope(const RoutingArray& array, std::string& text);

// The object {"data": base64 of the ids, "shape": [rows, layers, top_k], "dtype": name, "start":
// position of the first row}. It must have "start" if with_start, and must not otherwise.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadObject(JsonValue object, bool with_start,
                                                      const Limits& limits);

// The pair ["ndarray", {"data": nested lists, "dtype": name}].
[[nodiscard]] absl::StatusOr<RoutingArray> ReadNdarray(JsonValue pair, const Limits& limits);
void AppendNdarray(const RoutingArray& array, std::string& text);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_PAYLOADS_H_
