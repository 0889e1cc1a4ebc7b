// Arrays as numpy saves them: .npy, versions 1, 2 and 3.
#ifndef WAYMARK_PLUGIN_FORMATS_NPY_H_
#define WAYMARK_PLUGIN_FORMATS_NPY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "plugin/formats/routing_array.h"

namespace waymark::formats {

// What every .npy begins with.
inline constexpr std::uint8_t kNpyMagic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

// An array of three axes of one of our dtypes, in C or Fortran order. InvalidArgument naming what
// is wrong: another version, dtype or byte order, a header that is no such dictionary, a shape that
// the bytes behind it do not fill exactly. ResourceExhausted beyond the limits.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadNpy(std::span<const std::uint8_t> bytes,
                                                   const Limits& limits);

// Version 1.0, C order, byte for byte what numpy.save writes.
[[nodiscard]] std::vector<std::uint8_t> WriteNpy(const RoutingArray& array);

}  // namespace waymark::formats

#endif  // WAYMARK_PLUGIN_FORMATS_NPY_H_
