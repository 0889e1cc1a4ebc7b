// RoutingArray: what a format's bytes hold, before anybody says what it means.
#ifndef WAYMARK_PLUGIN_FORMATS_ROUTING_ARRAY_H_
#define WAYMARK_PLUGIN_FORMATS_ROUTING_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plugin/formats/dtype.h"

namespace waymark::formats {

// What bytes from outside may make a reader do. A call that would go beyond is ResourceExhausted.
struct Limits {
  // Of a text that is taken apart, and of each array, text or set of values that is made from it.
  std::size_t max_bytes = std::size_t{1} << 32;
};

// Of columns, as many as a model has layers, and of ids in one.
inline constexpr std::int32_t kMostColumns = 4096;

// A dense array [rows, layers, top_k] of integers in C order. A value. Which rows and layers they
// are, and which ids stand for none, is for Conventions (conventions.h) to say.
struct RoutingArray {
  Dtype dtype = Dtype::kInt16;
  std::int64_t rows = 0;              // 0 ... 2^31 - 1
  std::int32_t layers = 0;            // columns; 1 ... kMostColumns
  std::int32_t top_k = 0;             // 1 ... kMostColumns
  std::optional<std::int64_t> first;  // position of the first row, where the bytes say it
  std::vector<std::uint8_t> ids;      // rows * layers * top_k, little-endian

  // Integers of one row.
  [[nodiscard]] std::size_t row_ids() const {
    return static_cast<std::size_t>(layers) * static_cast<std::size_t>(top_k);
  }
  friend bool operator==(const RoutingArray&, const RoutingArray&) = default;
};

// An array of this shape with all ids 0. InvalidArgument naming `what`, rule and value unless the
// shape is three axes in the bounds above; ResourceExhausted beyond the limits. Nothing is
// allocated on error. Every reader makes its array here.
[[nodiscard]] absl::Status MakeArray(const std::string& what, std::span<const std::int64_t> shape,
                                     Dtype dtype, const Limits& limits, RoutingArray& array);

// The bytes of an array of this shape. Errors as MakeArray.
[[nodiscard]] absl::Status CheckShape(const std::string& what, std::span<const std::int64_t> shape,
                                      Dtype dtype, const Limits& limits, std::size_t& bytes);

// Reads the integers of `row`. REQUIRES: row in [0, rows), out.size() == row_ids().
void LoadRow(const RoutingArray& array, std::int64_t row, std::span<std::int64_t> out);
// Writes them. REQUIRES: as LoadRow, and every value is one that the dtype has.
void StoreRow(RoutingArray& array, std::int64_t row, std::span<const std::int64_t> values);

}  // namespace waymark::formats

#endif  // WAYMARK_PLUGIN_FORMATS_ROUTING_ARRAY_H_
