// Payloads: arrays as .npy files, and as the strings, lists and small objects in JSON responses of
// engines. The Read functions are safe on any bytes; their errors are InvalidArgument naming what
// is wrong, the rule and the value, and ResourceExhausted beyond the limits. The Append functions
// append to `text`. Any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_PAYLOADS_H_
#define WAYMARK_ADAPTERS_FORMATS_PAYLOADS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "adapters/formats/json_value.h"
#include "adapters/formats/routing_array.h"

namespace waymark::formats {

// Appends the encoding of `bytes` to `text`: base64 as in RFC 4648 section 4, with "+" and "/",
// padded with "=".
void AppendBase64(std::span<const std::uint8_t> bytes, std::string& text);

// How many bytes `text` has, if it is base64.
[[nodiscard]] std::size_t BytesOfBase64(std::string_view text);
// Decodes `text` to `bytes`; any text is safe. Strict: every text is the encoding of its bytes.
// InvalidArgument if the length is not a multiple of 4, or naming the index of the first invalid
// character: white space, the URL alphabet's "-" and "_", a "=" that is not at the end, or a last
// character with bits that no encoder sets. ResourceExhausted if the bytes exceed the limits.
[[nodiscard]] absl::Status DecodeBase64(std::string_view text, const Limits& limits,
                                        std::vector<std::uint8_t>& bytes);

// The first bytes of every .npy file.
inline constexpr std::uint8_t kNpyMagic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

// Reads an array as numpy saves it, versions 1.0, 2.0 and 3.0: with three axes and one of our
// dtypes, in C or Fortran order. Any bytes are safe. InvalidArgument naming what is wrong: another
// version, dtype, byte order or number of axes, a header that is not a dictionary of descr,
// fortran_order and shape, or data of another size than the shape.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadNpy(std::span<const std::uint8_t> bytes,
                                                   const Limits& limits);

// The file that numpy.save writes for `array`, byte for byte: version 1.0, C order.
[[nodiscard]] std::vector<std::uint8_t> WriteNpy(const RoutingArray& array);

// The first characters of base64 of an .npy file, and of the envelope below.
inline constexpr std::string_view kNpyTextStart = "k05VTVBZ";
inline constexpr std::string_view kEnvelopeStart = "nrlre1:";

// Nested lists, [rows][layers][top_k]. InvalidArgument naming the first list that is not as long as
// those before it, or the first number that `dtype` does not have.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadLists(const Json& lists, Dtype dtype,
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
[[nodiscard]] absl::StatusOr<RoutingArray> ReadObject(const Json& object, bool with_start,
                                                      const Limits& limits);

// The pair ["ndarray", {"data": nested lists, "dtype": name}].
[[nodiscard]] absl::StatusOr<RoutingArray> ReadNdarray(const Json& pair, const Limits& limits);
void AppendNdarray(const RoutingArray& array, std::string& text);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_PAYLOADS_H_
