#include "kernels/capture_ids.h"

#include <cassert>
#include <cstring>
#include <type_traits>

namespace waymark::kernels {
namespace {

template <class T>
std::int16_t ToView(const std::uint8_t* address) {
  T id;
  std::memcpy(&id, address, sizeof(id));
  if constexpr (sizeof(T) > sizeof(std::int16_t)) {
    if (id < -1 || id > 32767) return kUnrepresentableId;
  }
  return static_cast<std::int16_t>(id);
}

template <class T>
void Capture(const IdsView& ids, std::int32_t rows, std::int32_t top_k, std::int16_t* view) {
  const auto* row = static_cast<const std::uint8_t*>(ids.data);
  const auto copy = [&](auto stride) {
    for (std::int32_t i = 0; i < rows; ++i, row += ids.row_stride, view += top_k) {
      for (std::ptrdiff_t k = 0; k < top_k; ++k)
        view[k] = ToView<T>(row + k * stride);
    }
  };
  constexpr std::integral_constant<std::ptrdiff_t, sizeof(T)> kGapless;
  if (ids.k_stride != kGapless) return copy(ids.k_stride);
  if constexpr (std::is_same_v<T, std::int16_t>) {
    for (std::int32_t i = 0; i < rows; ++i, row += ids.row_stride, view += top_k)
      std::memcpy(view, row, static_cast<std::size_t>(top_k) * sizeof(T));
  } else {
    copy(kGapless);  // the stride is a constant, so that compilers can use vectors
  }
}

}  // namespace

void CaptureIds(const IdsView& ids, std::int32_t rows, std::int32_t top_k, std::int16_t* view) {
  switch (ids.kind) {
    case IdKind::kInt16:
      return Capture<std::int16_t>(ids, rows, top_k, view);
    case IdKind::kInt32:
      return Capture<std::int32_t>(ids, rows, top_k, view);
    case IdKind::kInt64:
      return Capture<std::int64_t>(ids, rows, top_k, view);
    case IdKind::kUint8:
    case IdKind::kUint16:
      break;
  }
  assert(false && "CaptureIds: ids.kind must be signed");
}

void PoisonRows(std::int16_t* data, std::ptrdiff_t layer_stride, std::int32_t num_layers,
                std::int32_t top_k, std::int32_t rows) {
  const std::size_t bytes =
      static_cast<std::size_t>(rows) * static_cast<std::size_t>(top_k) * sizeof(std::int16_t);
  if (bytes == 0) return;
  for (std::int32_t layer = 0; layer < num_layers; ++layer) {
    std::memset(data + layer * layer_stride, 0xff, bytes);
  }
}

}  // namespace waymark::kernels
