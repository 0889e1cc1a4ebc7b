// Tensors of expert ids that an engine owns and a capture session reads. Plain data, never owning.
#ifndef WAYMARK_PLUGIN_CAPTURE_IDS_TENSOR_H_
#define WAYMARK_PLUGIN_CAPTURE_IDS_TENSOR_H_

#include <cstddef>
#include <cstdint>

#include "blockstore/rows.h"
#include "blockstore/shape.h"

namespace waymark {

// What one layer chose: element (row, column) lies at data + row * row_stride + column * k_stride.
// Strides are in bytes and may be negative or zero. Columns beyond K (shared experts) are never
// read.
struct IdsTensor {
  const void* data = nullptr;  // may be null when rows == 0
  IdType type = IdType::kInt32;
  std::int32_t rows = 0;          // of the forward, padding included
  std::int32_t columns = 0;       // K, or more
  std::ptrdiff_t row_stride = 0;  // bytes from a row to the next
  std::ptrdiff_t k_stride = 0;    // bytes from a choice of a row to the next

  // A C-order [rows, columns] array of `type`.
  [[nodiscard]] static IdsTensor Contiguous(const void* data, IdType type, std::int32_t rows,
                                            std::int32_t columns) {
    const auto bytes = static_cast<std::ptrdiff_t>(IdBytes(type));
    return {data, type, rows, columns, bytes * columns, bytes};
  }
};

// What every layer chose in one step: element (row, layer, k) lies at
// data + row * row_stride + layer * layer_stride + k * k_stride. Strides in bytes, any sign.
// In the signed types -1 says that nothing was written there; in uint16 65535 says so; uint8
// cannot.
struct StepIds {
  const void* data = nullptr;  // may be null when rows == 0
  IdType type = IdType::kInt16;
  std::int32_t rows = 0;     // of the forward; those that a step has beyond them are not captured
  std::int32_t layers = 0;   // L
  std::int32_t columns = 0;  // K, or more
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t layer_stride = 0;
  std::ptrdiff_t k_stride = 0;

  // A C-order [rows, L, K] array: what a packed engine or a simulator has.
  [[nodiscard]] static StepIds TokenMajor(const void* data, IdType type, std::int32_t rows,
                                          const RoutingShape& shape) {
    const auto bytes = static_cast<std::ptrdiff_t>(IdBytes(type));
    const std::ptrdiff_t layer = bytes * shape.top_k;
    return {data,  type, rows, shape.num_layers, shape.top_k, layer * shape.num_layers,
            layer, bytes};
  }
  // A C-order [L, rows_allocated, K] array of which the first `rows` rows of every layer count:
  // a capture buffer of fixed size.
  [[nodiscard]] static StepIds LayerMajor(const void* data, IdType type, std::int32_t rows,
                                          std::int32_t rows_allocated, const RoutingShape& shape) {
    const auto bytes = static_cast<std::ptrdiff_t>(IdBytes(type));
    const std::ptrdiff_t row = bytes * shape.top_k;
    return {data, type, rows, shape.num_layers, shape.top_k, row, row * rows_allocated, bytes};
  }
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_IDS_TENSOR_H_
