// Base64 as in RFC 4648 section 4: with "+" and "/", padded with "=". Strict: nothing else is
// accepted, so every text is the encoding of its bytes. Any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_BASE64_H_
#define WAYMARK_ADAPTERS_FORMATS_BASE64_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "adapters/formats/routing_array.h"

namespace waymark::formats {

// Appends the encoding of `bytes` to `text`.
void AppendBase64(std::span<const std::uint8_t> bytes, std::string& text);

// How many bytes `text` has, if it is base64.
[[nodiscard]] std::size_t BytesOfBase64(std::string_view text);
// Decodes `text` to `bytes`; any text is safe. InvalidArgument if the length is not a multiple of
// 4, or naming the index of the first invalid character: white space, the URL alphabet's "-" and
// "_", a "=" that is not at the end, or a last character with bits that no encoder sets.
// ResourceExhausted if the bytes exceed the limits.
[[nodiscard]] absl::Status DecodeBase64(std::string_view text, const Limits& limits,
                                        std::vector<std::uint8_t>& bytes);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_BASE64_H_
