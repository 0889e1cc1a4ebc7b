#include "adapters/trainer/expand.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "adapters/trainer/invalid.h"
#include "blockstore/shape.h"
#include "blockstore/write_layers.h"
#include "plugin/capture/ids_kind.h"

namespace waymark {
namespace {

constexpr std::size_t kRowsAtOnce = 512;

RoutingShape ShapeOf(const PackedTensors& tensors) {
  RoutingShape shape;
  shape.num_layers = tensors.num_layers;
  shape.top_k = tensors.top_k;
  shape.num_experts = tensors.num_experts;
  return shape;
}

template <class Id>
std::int32_t MostOf(std::span<const std::uint8_t> ids) {
  Id most = 0;
  for (std::size_t at = 0; at < ids.size(); at += sizeof(Id)) {
    Id id;
    std::memcpy(&id, ids.data() + at, sizeof(id));
    most = std::max(most, id);
  }
  return most;
}

}  // namespace

absl::Status CheckExpand(const PackedTensors& tensors) {
  const RoutingShape shape = ShapeOf(tensors);
  if (absl::Status status = shape.Validate(); !status.ok()) return status;
  constexpr std::int64_t kMostRows = 0x7fffffff;
  if (tensors.rows < 0 || tensors.rows > kMostRows) {
    return Invalid("rows: must be in [0, ", kMostRows, "], got ", tensors.rows);
  }
  const auto rows = static_cast<std::uint64_t>(tensors.rows);
  const std::uint64_t row_ids =
      static_cast<std::uint64_t>(shape.num_layers) * static_cast<std::uint64_t>(shape.top_k);
  if (tensors.packed.size() != rows * shape.row_bytes()) {
    return Invalid("packed: must be ", rows * shape.row_bytes(), " bytes, got ",
                   tensors.packed.size());
  }
  if (tensors.mask.size() != rows) {
    return Invalid("mask: must be ", rows, " bytes, one a row, got ", tensors.mask.size());
  }
  if (tensors.ids.size() != rows * row_ids * IdBytes(tensors.id_type)) {
    return Invalid("ids: must be ", rows * row_ids * IdBytes(tensors.id_type), " bytes, got ",
                   tensors.ids.size());
  }
  return CheckHolds(tensors.id_type, shape.num_experts, tensors.fill);
}

absl::Status CheckExpandIds(const PackedTensors& tensors) {
  const RoutingShape shape = ShapeOf(tensors);
  const std::size_t row_bytes = shape.row_bytes();
  for (std::size_t row = 0; row < tensors.mask.size(); ++row) {
    if (tensors.mask[row] == 0) continue;
    const std::span<const std::uint8_t> ids = tensors.packed.subspan(row * row_bytes, row_bytes);
    const std::int32_t most =
        shape.id_bytes() == 1 ? MostOf<std::uint8_t>(ids) : MostOf<std::uint16_t>(ids);
    if (most >= shape.num_experts) {
      return Invalid("packed: ids must be below ", shape.num_experts, ", got ", most, " in row ",
                     row);
    }
  }
  return absl::OkStatus();
}

void ExpandOnHost(const PackedTensors& tensors) {
  const RoutingShape shape = ShapeOf(tensors);
  const auto rows = static_cast<std::size_t>(tensors.rows);
  const std::size_t row_bytes =
      static_cast<std::size_t>(tensors.top_k) * IdBytes(tensors.id_type);  // of a tensor
  const std::size_t layer_bytes = static_cast<std::size_t>(tensors.top_k) * shape.id_bytes();
  LayerTensors out = {tensors.id_type, tensors.fill, nullptr, rows * row_bytes,
                      tensors.ids.size() >= kStreamedBytes};
  std::array<const std::uint8_t*, kRowsAtOnce> pointers;
  for (std::size_t begin = 0; begin < rows; begin += kRowsAtOnce) {
    const std::size_t count = std::min(kRowsAtOnce, rows - begin);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t row = begin + i;
      pointers[i] =
          tensors.mask[row] != 0 ? tensors.packed.data() + row * shape.row_bytes() : nullptr;
    }
    out.ids = tensors.ids.data() + begin * row_bytes;
    WriteLayers(shape, {std::span(pointers).first(count), layer_bytes}, out);
  }
}

kernels::CudaGather GatherOf(const PackedTensors& tensors) {
  kernels::CudaGather gather;
  gather.shape = ToRowShape(ShapeOf(tensors));
  gather.pages = tensors.packed.data();
  gather.page_rows = 1;
  gather.page_stride = static_cast<std::ptrdiff_t>(gather.shape.row_bytes());
  gather.valid = tensors.mask.data();
  gather.rows = tensors.rows;
  gather.out = tensors.ids.data();
  gather.kind = ToKind(tensors.id_type);
  gather.order = kernels::RowsOrder::kLayersTokensK;
  switch (tensors.fill) {
    case Fill::kMinusOne:
      gather.fill = kernels::MissingFill::kMinusOne;
      break;
    case Fill::kZeros:
      gather.fill = kernels::MissingFill::kZeros;
      break;
    case Fill::kArange:
      gather.fill = kernels::MissingFill::kArange;
      break;
  }
  return gather;
}

}  // namespace waymark
