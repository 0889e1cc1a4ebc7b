// Base64 as RFC 4648 section 4 has it: "+" and "/", padded with "=", nothing else.
#ifndef WAYMARK_PLUGIN_FORMATS_BASE64_H_
#define WAYMARK_PLUGIN_FORMATS_BASE64_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin/formats/routing_array.h"

namespace waymark::formats {

// Appends the text of `bytes`.
void AppendBase64(std::span<const std::uint8_t> bytes, std::string& text);

// The bytes that `text` stands for. InvalidArgument naming the place of the first character that
// cannot be there: white space, the URL alphabet, a length that is no multiple of 4, bits that no
// encoder leaves set. ResourceExhausted beyond the limits.
[[nodiscard]] absl::StatusOr<std::vector<std::uint8_t>> DecodeBase64(std::string_view text,
                                                                     const Limits& limits);

}  // namespace waymark::formats

#endif  // WAYMARK_PLUGIN_FORMATS_BASE64_H_
