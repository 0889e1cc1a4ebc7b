// StepIds: a tensor of expert ids that an engine owns and a capture session reads. Plain data that
// does not own the memory it points to.
#ifndef WAYMARK_PLUGIN_CAPTURE_IDS_TENSOR_H_
#define WAYMARK_PLUGIN_CAPTURE_IDS_TENSOR_H_

#include <cstddef>
#include <cstdint>

#include "blockstore/rows.h"
#include "blockstore/shape.h"

namespace waymark {

// The ids of all layers of one step, [rows, layers, columns] in any order: element (row, layer, k)
// is at data + row * row_stride + layer * layer_stride + k * k_stride. Strides are in bytes and may
// be negative or zero. An id of -1 (65535 in uint16) means that the layer did not write it; uint8
// has no such value. Columns from K on (CaptureOptions::extra_columns) are never read. Also the ids
// of one layer, as CaptureSession::HandOver takes them; their layers and layer_stride are ignored.
struct StepIds {
  const void* data =
      nullptr;  // host memory (of a layer: the transport's); may be null without rows
  IdType type = IdType::kInt16;
  std::int32_t rows = 0;     // rows of the forward; later rows of the step are not captured
  std::int32_t layers = 0;   // L
  std::int32_t columns = 0;  // K + CaptureOptions::extra_columns
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t layer_stride = 0;
  std::ptrdiff_t k_stride = 0;
  // Of one layer: row i is row first_row + i of the forward, of one of several micro-batches, whose
  // layers run at different times. Of a whole step 0.
  std::int32_t first_row = 0;

  // Of one layer: a C-order [rows, columns] array of `type`.
  [[nodiscard]] static StepIds OfLayer(const void* data, IdType type, std::int32_t rows,
                                       std::int32_t columns) {
    const auto bytes = static_cast<std::ptrdiff_t>(IdBytes(type));
    return {data, type, rows, 1, columns, bytes * columns, 0, bytes};
  }
  // A C-order [rows, L, K] array.
  [[nodiscard]] static StepIds TokenMajor(const void* data, IdType type, std::int32_t rows,
                                          const RoutingShape& shape) {
    const auto bytes = static_cast<std::ptrdiff_t>(IdBytes(type));
    const std::ptrdiff_t layer = bytes * shape.top_k;
    return {data,  type, rows, shape.num_layers, shape.top_k, layer * shape.num_layers,
            layer, bytes};
  }
};

// Called when the tensor of a step is no longer read: on the landing thread, or on the engine's
// thread if the step was refused. Must not throw, and must not call the store or the session.
struct DoneCallback {
  void (*function)(void* context) = nullptr;  // null: nothing is called
  void* context = nullptr;                    // passed to `function`

  void operator()() const {
    if (function != nullptr) function(context);
  }
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_IDS_TENSOR_H_
