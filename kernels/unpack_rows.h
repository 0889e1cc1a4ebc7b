// UnpackRows: packed rows at scattered addresses to one strided tensor of ids.
//
// The inverse of PackRows, and the host twin of the device's gather. Reentrant; any thread.
#ifndef WAYMARK_KERNELS_UNPACK_ROWS_H_
#define WAYMARK_KERNELS_UNPACK_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ids_view.h"

namespace waymark::kernels {

// What a missing row becomes.
enum class MissingFill : std::uint8_t {
  kMinusOne,  // all bits set
  kZeros,
  kArange,  // 0, 1, ..., K - 1 in every layer
};

// Where rows go: as IdsView, writable.
struct MutableIdsView {
  void* data = nullptr;
  IdKind kind = IdKind::kInt16;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t layer_stride = 0;
  std::ptrdiff_t k_stride = 0;
};

// Writes packed row sources[i] (null: missing) to row i of `out`. REQUIRES: elements of `out` do
// not overlap each other or a source; ids fit out.kind.
void UnpackRows(const RowShape& shape, std::span<const std::uint8_t* const> sources,
                const MutableIdsView& out, MissingFill fill);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_UNPACK_ROWS_H_
