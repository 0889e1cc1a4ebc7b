#include "adapters/formats/routing_array.h"

#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace waymark::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are moved as they lie");

constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();

template <class T>
void Load(const std::uint8_t* from, std::span<std::int64_t> out) {
  for (std::int64_t& value : out) {
    T id;
    std::memcpy(&id, from, sizeof(T));
    from += sizeof(T);
    value = id;  // NOLINT(bugprone-signed-char-misuse): the sign is meant.
  }
}

template <class T>
void Store(std::span<const std::int64_t> values, std::uint8_t* to) {
  for (const std::int64_t value : values) {
    const T id = static_cast<T>(value);
    std::memcpy(to, &id, sizeof(T));
    to += sizeof(T);
  }
}

}  // namespace

absl::Status CheckShape(const std::string& what, std::span<const std::int64_t> shape, Dtype dtype,
                        const Limits& limits, std::size_t& bytes) {
  if (shape.size() != 3) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": the shape must have three axes, [rows, layers, top_k]; it has ", shape.size()));
  }
  struct Axis {
    const char* name;
    std::int64_t least;
    std::int64_t most;
  };
  static constexpr Axis kAxes[3] = {
      {"rows", 0, kMostRows}, {"layers", 1, kMostColumns}, {"top_k", 1, kMostColumns}};
  std::uint64_t total = DtypeBytes(dtype);
  for (std::size_t i = 0; i < 3; ++i) {
    if (shape[i] < kAxes[i].least || shape[i] > kAxes[i].most) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", kAxes[i].name, " must be in [",
                                                     kAxes[i].least, ", ", kAxes[i].most,
                                                     "]; it is ", shape[i]));
    }
    total *= static_cast<std::uint64_t>(shape[i]);  // below 2^3 * 2^31 * 2^12 * 2^12
  }
  if (total > limits.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": the array takes ", total, " bytes; the limit is ", limits.max_bytes));
  }
  bytes = static_cast<std::size_t>(total);
  return absl::OkStatus();
}

absl::Status MakeArray(const std::string& what, std::span<const std::int64_t> shape, Dtype dtype,
                       const Limits& limits, RoutingArray& array) {
  std::size_t bytes = 0;
  if (absl::Status status = CheckShape(what, shape, dtype, limits, bytes); !status.ok()) {
    return status;
  }
  array.dtype = dtype;
  array.rows = shape[0];
  array.layers = static_cast<std::int32_t>(shape[1]);
  array.top_k = static_cast<std::int32_t>(shape[2]);
  array.ids.assign(bytes, 0);
  return absl::OkStatus();
}

void LoadRow(const RoutingArray& array, std::int64_t row, std::span<std::int64_t> out) {
  const std::uint8_t* from =
      array.ids.data() + static_cast<std::size_t>(row) * array.row_ids() * DtypeBytes(array.dtype);
  switch (array.dtype) {
    case Dtype::kInt8:
      return Load<std::int8_t>(from, out);
    case Dtype::kUint8:
      return Load<std::uint8_t>(from, out);
    case Dtype::kInt16:
      return Load<std::int16_t>(from, out);
    case Dtype::kUint16:
      return Load<std::uint16_t>(from, out);
    case Dtype::kInt32:
      return Load<std::int32_t>(from, out);
    case Dtype::kInt64:
      return Load<std::int64_t>(from, out);
  }
}

void StoreRow(RoutingArray& array, std::int64_t row, std::span<const std::int64_t> values) {
  std::uint8_t* to =
      array.ids.data() + static_cast<std::size_t>(row) * array.row_ids() * DtypeBytes(array.dtype);
  switch (array.dtype) {
    case Dtype::kInt8:
      return Store<std::int8_t>(values, to);
    case Dtype::kUint8:
      return Store<std::uint8_t>(values, to);
    case Dtype::kInt16:
      return Store<std::int16_t>(values, to);
    case Dtype::kUint16:
      return Store<std::uint16_t>(values, to);
    case Dtype::kInt32:
      return Store<std::int32_t>(values, to);
    case Dtype::kInt64:
      return Store<std::int64_t>(values, to);
  }
}

}  // namespace waymark::formats
