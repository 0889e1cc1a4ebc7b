#include "kernels/unpack_rows.h"

#include <cstring>
#include <type_traits>

namespace waymark::kernels {
namespace {

template <class T>
void Store(std::uint8_t* address, T id) {
  std::memcpy(address, &id, sizeof(id));
}

template <class Packed, class Out>
void UnpackRow(const RowShape& shape, const std::uint8_t* input, const MutableIdsView& out,
               std::uint8_t* destination) {
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
    std::uint8_t* to = destination + layer * out.layer_stride;
    for (std::int32_t k = 0; k < shape.top_k; ++k, input += sizeof(Packed)) {
      Packed id;
      std::memcpy(&id, input, sizeof(id));
      Store<Out>(to + k * out.k_stride, static_cast<Out>(id));
    }
  }
}

template <class Out>
void FillRow(const RowShape& shape, const MutableIdsView& out, MissingFill fill,
             std::uint8_t* destination) {
  for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
    std::uint8_t* to = destination + layer * out.layer_stride;
    for (std::int32_t k = 0; k < shape.top_k; ++k) {
      Out id = static_cast<Out>(-1);
      if (fill == MissingFill::kZeros) id = 0;
      if (fill == MissingFill::kArange) id = static_cast<Out>(k);
      Store<Out>(to + k * out.k_stride, id);
    }
  }
}

template <class Out>
void Unpack(const RowShape& shape, std::span<const std::uint8_t* const> inputs,
            const MutableIdsView& out, MissingFill fill) {
  auto* destination = static_cast<std::uint8_t*>(out.data);
  const bool bytes = shape.id_bytes() == 1;
  for (const std::uint8_t* input : inputs) {
    if (input == nullptr) {
      FillRow<Out>(shape, out, fill, destination);
    } else if (bytes) {
      UnpackRow<std::uint8_t, Out>(shape, input, out, destination);
    } else {
      UnpackRow<std::uint16_t, Out>(shape, input, out, destination);
    }
    destination += out.row_stride;
  }
}

}  // namespace

void UnpackRows(const RowShape& shape, std::span<const std::uint8_t* const> inputs,
                const MutableIdsView& out, MissingFill fill) {
  switch (out.kind) {
    case IdKind::kUint8:
      return Unpack<std::uint8_t>(shape, inputs, out, fill);
    case IdKind::kUint16:
      return Unpack<std::uint16_t>(shape, inputs, out, fill);
    case IdKind::kInt16:
      return Unpack<std::int16_t>(shape, inputs, out, fill);
    case IdKind::kInt32:
      return Unpack<std::int32_t>(shape, inputs, out, fill);
    case IdKind::kInt64:
      return Unpack<std::int64_t>(shape, inputs, out, fill);
  }
}

}  // namespace waymark::kernels
