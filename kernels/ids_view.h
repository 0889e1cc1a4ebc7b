// The shape of rows, and strided views of expert ids. Raw pointers, no ownership.
//
// They describe the input and output of the pack, capture and unpack functions, on the host and on
// a device alike. Nothing here allocates or throws.
//
// A row is the routing of one token: [num_layers][top_k] expert ids. A packed row has them in that
// order without gaps, with one byte per id when there are at most 256 experts, else two
// (little-endian).
#ifndef WAYMARK_KERNELS_IDS_VIEW_H_
#define WAYMARK_KERNELS_IDS_VIEW_H_

#include <cstddef>
#include <cstdint>

namespace waymark::kernels {

// The integer type of the ids that a kernel reads. Little-endian. -1 in a signed type, and 65535 in
// kUint16, is an id that was not written; kUint8 has no such value.
enum class IdKind : std::uint8_t { kUint8, kUint16, kInt16, kInt32, kInt64 };

// Bytes of one id: 1, 2, 2, 4 or 8; 0 for a number that is no type.
[[nodiscard]] constexpr std::size_t IdKindBytes(IdKind kind) {
  switch (kind) {
    case IdKind::kUint8:
      return 1;
    case IdKind::kUint16:
    case IdKind::kInt16:
      return 2;
    case IdKind::kInt32:
      return 4;
    case IdKind::kInt64:
      return 8;
  }
  return 0;
}

// Calls visit.operator()<T>() with the integer type T of ids of this kind.
template <class Visitor>
decltype(auto) VisitKind(IdKind kind, Visitor&& visit) {
  switch (kind) {
    case IdKind::kUint8:
      return visit.template operator()<std::uint8_t>();
    case IdKind::kUint16:
      return visit.template operator()<std::uint16_t>();
    case IdKind::kInt16:
      return visit.template operator()<std::int16_t>();
    case IdKind::kInt32:
      return visit.template operator()<std::int32_t>();
    default:
      return visit.template operator()<std::int64_t>();
  }
}

// The shape of a row; the same for every row of a call. A value; kernels do not check it.
// REQUIRES: num_layers, top_k >= 1; 1 <= num_experts <= 65535.
struct RowShape {
  std::int32_t num_layers = 0;   // L: captured layers
  std::int32_t top_k = 0;        // K: experts per token and layer
  std::int32_t num_experts = 0;  // E: valid ids are in [0, E)

  // Ids of one row: L * K.
  [[nodiscard]] std::size_t row_ids() const {
    return static_cast<std::size_t>(num_layers) * static_cast<std::size_t>(top_k);
  }
  // Bytes of one packed id: 1 (uint8) if E <= 256, otherwise 2 (little-endian uint16).
  [[nodiscard]] std::size_t id_bytes() const { return num_experts <= 256 ? 1 : 2; }
  // Bytes of one packed row: L * K * id_bytes().
  [[nodiscard]] std::size_t row_bytes() const { return row_ids() * id_bytes(); }
};

// Ids of many rows: the id (row, layer, k) lies at data + row * row_stride + layer * layer_stride +
// k * k_stride. Strides are in bytes and may be negative or zero; no alignment is needed. The
// number of rows is an argument of the kernel. The caller owns the memory, on the host or on the
// device of the call, and keeps it valid while the kernel reads it.
struct IdsView {
  const void* data = nullptr;       // address of (row 0, layer 0, k 0)
  IdKind kind = IdKind::kInt16;     // type of an id
  std::ptrdiff_t row_stride = 0;    // bytes from one row to the next
  std::ptrdiff_t layer_stride = 0;  // bytes from one layer to the next
  std::ptrdiff_t k_stride = 0;      // bytes from one id of a layer to the next

  // A C-order array [rows, L, K] at `data`: all layers of a token are adjacent.
  [[nodiscard]] static IdsView TokenMajor(const void* data, IdKind kind, const RowShape& shape) {
    const auto bytes = static_cast<std::ptrdiff_t>(IdKindBytes(kind));
    const std::ptrdiff_t layer = bytes * shape.top_k;
    return {data, kind, layer * shape.num_layers, layer, bytes};
  }
  // A C-order array [L, rows, K] at `data`, such as a capture view: all tokens of a layer are
  // adjacent. `rows` is the allocated number of rows, of which the kernel may read fewer.
  [[nodiscard]] static IdsView LayerMajor(const void* data, IdKind kind, std::ptrdiff_t rows,
                                          const RowShape& shape) {
    const auto bytes = static_cast<std::ptrdiff_t>(IdKindBytes(kind));
    const std::ptrdiff_t row = bytes * shape.top_k;
    return {data, kind, row, row * rows, bytes};
  }
  // The same view without its first `rows` rows: row 0 of the result is row `rows` of this view.
  [[nodiscard]] IdsView From(std::ptrdiff_t rows) const {
    IdsView view = *this;
    view.data = static_cast<const std::uint8_t*>(data) + rows * row_stride;
    return view;
  }
};

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_IDS_VIEW_H_
