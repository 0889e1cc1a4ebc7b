// RoutingArray: the array of integers in the bytes of a format. Conventions (conventions.h) give
// the meaning of its rows, columns and ids.
#ifndef WAYMARK_ADAPTERS_FORMATS_ROUTING_ARRAY_H_
#define WAYMARK_ADAPTERS_FORMATS_ROUTING_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace waymark::formats {

// The integer types of arrays. Always little-endian.
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

// A bound on what bytes from outside can make a reader do. A call that would exceed it fails with
// ResourceExhausted.
struct Limits {
  // The most bytes of a text that is parsed, and of each array, text or JSON tree made from it.
  std::size_t max_bytes = std::size_t{1} << 32;
};

// The bound on layers, and on top_k.
inline constexpr std::int32_t kMostColumns = 4096;

// A dense array [rows, layers, top_k] of integers in C order. A value.
struct RoutingArray {
  Dtype dtype = Dtype::kInt16;
  std::int64_t rows = 0;              // 0 ... 2^31 - 1
  std::int32_t layers = 0;            // columns, 1 ... kMostColumns
  std::int32_t top_k = 0;             // 1 ... kMostColumns
  std::optional<std::int64_t> first;  // position of the first row, if the bytes contain it
  std::vector<std::uint8_t> ids;      // rows * layers * top_k integers of `dtype`, little-endian

  // The number of integers in one row.
  [[nodiscard]] std::size_t row_ids() const {
    return static_cast<std::size_t>(layers) * static_cast<std::size_t>(top_k);
  }
  friend bool operator==(const RoutingArray&, const RoutingArray&) = default;
};

// Makes `array` one of this shape in which all ids are 0. Every reader makes its array here.
// InvalidArgument naming `what`, the rule and the value unless `shape` has three axes within the
// bounds above; ResourceExhausted if it exceeds the limits. On error nothing is allocated.
[[nodiscard]] absl::Status MakeArray(const std::string& what, std::span<const std::int64_t> shape,
                                     Dtype dtype, const Limits& limits, RoutingArray& array);

// Gives `array` this shape and dtype, and leaves its ids, whose size `bytes` is set to. Errors as
// MakeArray.
[[nodiscard]] absl::Status SetShape(const std::string& what, std::span<const std::int64_t> shape,
                                    Dtype dtype, const Limits& limits, RoutingArray& array,
                                    std::size_t& bytes);

// Reads the integers of row `row` into `out`. REQUIRES: row in [0, rows), out.size() == row_ids().
void LoadRow(const RoutingArray& array, std::int64_t row, std::span<std::int64_t> out);
// Writes the integers of row `row`. REQUIRES: as LoadRow, and the dtype can hold every value.
void StoreRow(RoutingArray& array, std::int64_t row, std::span<const std::int64_t> values);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_ROUTING_ARRAY_H_
