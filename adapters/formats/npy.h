// Arrays as numpy saves them: .npy files, versions 1.0, 2.0 and 3.0. Any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_NPY_H_
#define WAYMARK_ADAPTERS_FORMATS_NPY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "adapters/formats/routing_array.h"

namespace waymark::formats {

// The first bytes of every .npy file.
inline constexpr std::uint8_t kNpyMagic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

// Reads an array with three axes and one of our dtypes, in C or Fortran order. Any bytes are safe.
// InvalidArgument naming what is wrong: another version, dtype, byte order or number of axes, a
// header that is not a dictionary of descr, fortran_order and shape, or data of another size than
// the shape. ResourceExhausted beyond the limits.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadNpy(std::span<const std::uint8_t> bytes,
                                                   const Limits& limits);

// The file that numpy.save writes for `array`, byte for byte: version 1.0, C order.
[[nodiscard]] std::vector<std::uint8_t> WriteNpy(const RoutingArray& array);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_NPY_H_
