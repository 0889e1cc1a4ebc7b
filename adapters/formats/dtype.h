// Dtype: the integer types of arrays in the formats of others. Always little-endian. Pure
// functions: any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_DTYPE_H_
#define WAYMARK_ADAPTERS_FORMATS_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace waymark::formats {

enum class Dtype : std::uint8_t { kInt8, kUint8, kInt16, kUint16, kInt32, kInt64 };
inline constexpr int kNumDtypes = 6;

// Bytes of one number: 1, 1, 2, 2, 4, 8.
[[nodiscard]] std::size_t DtypeBytes(Dtype dtype);
// The name in numpy, e.g. "uint16". Static storage.
[[nodiscard]] std::string_view DtypeName(Dtype dtype);
// The dtype with this name in numpy; nullopt if none of ours has it.
[[nodiscard]] std::optional<Dtype> DtypeNamed(std::string_view name);
// Whether a number of this dtype can be `value`.
[[nodiscard]] bool Holds(Dtype dtype, std::int64_t value);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_DTYPE_H_
