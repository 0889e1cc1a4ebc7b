#include "adapters/formats/dtype.h"

#include <array>
#include <limits>

namespace waymark::formats {
namespace {

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

}  // namespace waymark::formats
