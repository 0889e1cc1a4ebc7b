// UnpackRows: copies packed rows at scattered addresses to one strided tensor of ids.
//
// The inverse of PackRows, and the host twin of GatherRowsOnCuda. Any thread; no allocation.
#ifndef WAYMARK_KERNELS_UNPACK_ROWS_H_
#define WAYMARK_KERNELS_UNPACK_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ids_view.h"

namespace waymark::kernels {

// The ids that are written for a missing row.
enum class MissingFill : std::uint8_t {
  kMinusOne,  // all bits set
  kZeros,
  kArange,  // 0, 1, ..., K - 1 in every layer
};

// The tensor that rows are written to: an IdsView that is writable. Memory of the caller.
struct MutableIdsView {
  void* data = nullptr;             // address of (row 0, layer 0, k 0)
  IdKind kind = IdKind::kInt16;     // type of an id
  std::ptrdiff_t row_stride = 0;    // bytes from a row to the next; strides have any sign
  std::ptrdiff_t layer_stride = 0;  // bytes from a layer to the next
  std::ptrdiff_t k_stride = 0;      // bytes from an id of a layer to the next
};

// Writes the packed row inputs[i] to row i of `out`; a null input is a missing row, which gets
// `fill`. REQUIRES: elements of `out` overlap neither each other nor an input; ids fit out.kind.
void UnpackRows(const RowShape& shape, std::span<const std::uint8_t* const> inputs,
                const MutableIdsView& out, MissingFill fill);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_UNPACK_ROWS_H_
