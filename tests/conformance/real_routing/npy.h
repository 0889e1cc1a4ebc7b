// A minimal reader of .npy files: uint8 arrays in C order, as the recorded routing comes. Any bytes
// are safe.
#ifndef WAYMARK_TESTS_CONFORMANCE_REAL_ROUTING_NPY_H_
#define WAYMARK_TESTS_CONFORMANCE_REAL_ROUTING_NPY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace waymark {

struct ByteArray {
  std::vector<std::size_t> shape;
  std::vector<std::uint8_t> data;  // product of `shape`
};

// InvalidArgument naming what is wrong: not an .npy of version 1 or 2, another dtype, Fortran
// order, a shape that its bytes do not fill exactly.
[[nodiscard]] absl::StatusOr<ByteArray> ParseNpy(const std::string& bytes);
// NotFound when the file cannot be read; otherwise as ParseNpy, with the path.
[[nodiscard]] absl::StatusOr<ByteArray> ReadNpy(const std::string& path);

}  // namespace waymark

#endif  // WAYMARK_TESTS_CONFORMANCE_REAL_ROUTING_NPY_H_
