#include "adapters/formats/routing_array.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "blockstore/invalid.h"

namespace waymark::formats {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are moved as they lie");

// Calls call.operator()<T>() with the type that `dtype` names.
template <class Call>
void WithType(Dtype dtype, Call&& call) {
  switch (dtype) {
    case Dtype::kInt8:
      return call.template operator()<std::int8_t>();
    case Dtype::kUint8:
      return call.template operator()<std::uint8_t>();
    case Dtype::kInt16:
      return call.template operator()<std::int16_t>();
    case Dtype::kUint16:
      return call.template operator()<std::uint16_t>();
    case Dtype::kInt32:
      return call.template operator()<std::int32_t>();
    case Dtype::kInt64:
      return call.template operator()<std::int64_t>();
  }
}

struct Traits {
  std::string_view name;
  std::size_t bytes;
  std::int64_t least;
  std::int64_t most;
};

template <class T>
constexpr Traits TraitsOf(std::string_view name) {
  return {name, sizeof(T), std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
}

// In the order of the enum.
constexpr std::array<Traits, kNumDtypes> kTraits = {
    TraitsOf<std::int8_t>("int8"),   TraitsOf<std::uint8_t>("uint8"),
    TraitsOf<std::int16_t>("int16"), TraitsOf<std::uint16_t>("uint16"),
    TraitsOf<std::int32_t>("int32"), TraitsOf<std::int64_t>("int64"),
};

const Traits& Of(Dtype dtype) {
  return kTraits[static_cast<std::size_t>(dtype)];
}

}  // namespace

std::size_t DtypeBytes(Dtype dtype) {
  return Of(dtype).bytes;
}

std::string_view DtypeName(Dtype dtype) {
  return Of(dtype).name;
}

std::optional<Dtype> DtypeNamed(std::string_view name) {
  for (int i = 0; i < kNumDtypes; ++i) {
    if (kTraits[static_cast<std::size_t>(i)].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

bool Holds(Dtype dtype, std::int64_t value) {
  return value >= Of(dtype).least && value <= Of(dtype).most;
}

absl::Status SetShape(const std::string& what, std::span<const std::int64_t> shape, Dtype dtype,
                      const Limits& limits, RoutingArray& array, std::size_t& bytes) {
  if (shape.size() != 3) {
    return Invalid(what, ": the shape must have three axes, [rows, layers, top_k]; it has ",
                   shape.size());
  }
  struct Axis {
    const char* name;
    std::int64_t least;
    std::int64_t most;
  };
  static constexpr Axis kAxes[3] = {{"rows", 0, std::numeric_limits<std::int32_t>::max()},
                                    {"layers", 1, kMostColumns},
                                    {"top_k", 1, kMostColumns}};
  std::uint64_t total = DtypeBytes(dtype);
  for (std::size_t i = 0; i < 3; ++i) {
    if (shape[i] < kAxes[i].least || shape[i] > kAxes[i].most) {
      return Invalid(what, ": ", kAxes[i].name, " must be in [", kAxes[i].least, ", ",
                     kAxes[i].most, "]; it is ", shape[i]);
    }
    total *= static_cast<std::uint64_t>(shape[i]);  // below 2^3 * 2^31 * 2^12 * 2^12
  }
  if (total > limits.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": the array takes ", total, " bytes; the limit is ", limits.max_bytes));
  }
  bytes = static_cast<std::size_t>(total);
  array.dtype = dtype;
  array.rows = shape[0];
  array.layers = static_cast<std::int32_t>(shape[1]);
  array.top_k = static_cast<std::int32_t>(shape[2]);
  return absl::OkStatus();
}

absl::Status MakeArray(const std::string& what, std::span<const std::int64_t> shape, Dtype dtype,
                       const Limits& limits, RoutingArray& array) {
  std::size_t bytes = 0;
  absl::Status status = SetShape(what, shape, dtype, limits, array, bytes);
  if (status.ok()) array.ids.assign(bytes, 0);
  return status;
}

void LoadRow(const RoutingArray& array, std::int64_t row, std::span<std::int64_t> out) {
  const std::uint8_t* from =
      array.ids.data() + static_cast<std::size_t>(row) * array.row_ids() * DtypeBytes(array.dtype);
  WithType(array.dtype, [&]<class T>() {
    for (std::int64_t& value : out) {
      T id;
      std::memcpy(&id, from, sizeof(T));
      from += sizeof(T);
      value = id;  // NOLINT(bugprone-signed-char-misuse): the sign is meant.
    }
  });
}

void StoreRow(RoutingArray& array, std::int64_t row, std::span<const std::int64_t> values) {
  std::uint8_t* to =
      array.ids.data() + static_cast<std::size_t>(row) * array.row_ids() * DtypeBytes(array.dtype);
  WithType(array.dtype, [&]<class T>() {
    for (const std::int64_t value : values) {
      const T id = static_cast<T>(value);
      std::memcpy(to, &id, sizeof(T));
      to += sizeof(T);
    }
  });
}

}  // namespace waymark::formats
