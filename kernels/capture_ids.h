// CaptureIds copies the ids of one layer, of any integer type and strides, into its view.
// PoisonRows sets rows of a view to -1 after they have been packed.
//
// Both are the host twins of launches in a CUDA graph (pack_cuda.h): the same bytes for the same
// input. A view is an array [rows, top_k] of int16 in C order. Any thread; no allocation.
#ifndef WAYMARK_KERNELS_CAPTURE_IDS_H_
#define WAYMARK_KERNELS_CAPTURE_IDS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/ids_view.h"

namespace waymark::kernels {

// Replaces in a view an id that is below -1 or that int16 cannot hold: it is invalid, and differs
// from -1 (not written).
inline constexpr std::int16_t kUnrepresentableId = -2;

// Copies the first top_k ids of rows [0, rows) of `ids` to view[row * top_k + k]; ids.layer_stride
// is ignored. -1 stays -1. REQUIRES: ids.kind is signed; input and view do not overlap.
void CaptureIds(const IdsView& ids, std::int32_t rows, std::int32_t top_k, std::int16_t* view);

// Sets rows [0, rows) of every layer to -1. `data`: [num_layers, *, top_k] of int16, with
// `layer_stride` ids from one layer to the next.
void PoisonRows(std::int16_t* data, std::ptrdiff_t layer_stride, std::int32_t num_layers,
                std::int32_t top_k, std::int32_t rows);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_CAPTURE_IDS_H_
