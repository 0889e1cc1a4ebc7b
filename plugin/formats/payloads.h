// Payloads: arrays as the strings and small objects that JSON answers carry. Each reader takes any
// bytes; errors are InvalidArgument naming part, rule and value, and ResourceExhausted beyond the
// limits.
#ifndef WAYMARK_PLUGIN_FORMATS_PAYLOADS_H_
#define WAYMARK_PLUGIN_FORMATS_PAYLOADS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "plugin/formats/json_value.h"
#include "plugin/formats/routing_array.h"

namespace waymark::formats {

// How the strings begin that are base64 of an .npy, and the envelope.
inline constexpr std::string_view kNpyTextStart = "k05VTVBZ";
inline constexpr std::string_view kEnvelopeStart = "nrlre1:";

// Base64 of an .npy.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadNpyText(std::string_view text, const Limits& limits);
void AppendNpyText(const RoutingArray& array, std::string& text);

// Base64 of the bare ids: the number of rows is what is left when everything else is known.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadRawText(std::string_view text, Dtype dtype,
                                                       std::int32_t layers, std::int32_t top_k,
                                                       const Limits& limits);
void AppendRawText(const RoutingArray& array, std::string& text);

// "nrlre1:<dtype>:<rows>x<layers>x<top_k>:<base64 of the ids>".
[[nodiscard]] absl::StatusOr<RoutingArray> ReadEnvelope(std::string_view text,
                                                        const Limits& limits);
void AppendEnvelope(const RoutingArray& array, std::string& text);

// {"data": base64 of the ids, "shape": [rows, layers, top_k], "dtype": name, "start": first row}.
// `start` must be there exactly when `with_start` says so.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadObject(const JsonValue& object, bool with_start,
                                                      const Limits& limits);

// ["ndarray", {"data": nested lists, "dtype": name}].
[[nodiscard]] absl::StatusOr<RoutingArray> ReadNdarray(const JsonValue& pair, const Limits& limits);
void AppendNdarray(const RoutingArray& array, std::string& text);

}  // namespace waymark::formats

#endif  // WAYMARK_PLUGIN_FORMATS_PAYLOADS_H_
