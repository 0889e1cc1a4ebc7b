// CaptureIds: one layer's ids of any type and strides into its view; PoisonRows: -1 over written
// rows.
//
// Host twins of what runs in a device's graph. A view is an array [rows, top_k] of int16 in C
// order.
#ifndef WAYMARK_KERNELS_CAPTURE_IDS_H_
#define WAYMARK_KERNELS_CAPTURE_IDS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/ids_view.h"

namespace waymark::kernels {

// What an id becomes that int16 cannot hold. Never valid, and not -1 either.
inline constexpr std::int16_t kUnrepresentableId = -2;

// Copies ids (row, k), k < top_k, of `ids` (layer_stride is not looked at) to view[row * top_k + k]
// for `rows` rows. -1 stays -1. REQUIRES: ids.kind is signed; source and view do not overlap.
void CaptureIds(const IdsView& ids, std::int32_t rows, std::int32_t top_k, std::int16_t* view);

// Writes -1 over rows [0, rows) of every layer of `data`, an array [num_layers, *, top_k] whose
// layers are `layer_stride` ids apart.
void PoisonRows(std::int16_t* data, std::ptrdiff_t layer_stride, std::int32_t num_layers,
                std::int32_t top_k, std::int32_t rows);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_CAPTURE_IDS_H_
