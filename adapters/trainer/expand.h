// Packed rows of a rank (RouterTensors::packed) become the tensors of its routers where these are.
//
// For tensors in a device's memory: the rows cross the bus as they are stored, a byte an id up to
// 256 experts, and are widened there. ExpandOnHost is the host twin of kernels::GatherRowsOnCuda,
// which is called for a device.
#ifndef WAYMARK_ADAPTERS_TRAINER_EXPAND_H_
#define WAYMARK_ADAPTERS_TRAINER_EXPAND_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "kernels/pack_cuda.h"

namespace waymark {

// The type in which ids of `num_experts` experts are stored.
[[nodiscard]] constexpr IdType StoredIdType(std::int32_t num_experts) {
  return num_experts <= 256 ? IdType::kUint8 : IdType::kUint16;
}

// One call. Pointers are of the host, or of a device.
struct PackedTensors {
  std::int32_t num_layers = 0;  // tensors, 1 to 1024
  std::int32_t top_k = 0;       // 1 to 64
  std::int32_t num_experts = 0;
  std::int64_t rows = 0;  // of a tensor; 0 to 2^31 - 1
  // [rows][num_layers][top_k] of StoredIdType(num_experts).
  std::span<const std::uint8_t> packed;
  // [rows]: 0: the row gets the fill.
  std::span<const std::uint8_t> mask;
  // [num_layers][rows][top_k] of id_type, C order.
  std::span<std::uint8_t> ids;
  IdType id_type = IdType::kInt64;
  Fill fill = Fill::kArange;
};

// InvalidArgument, naming the argument, the rule and the value: numbers out of range, a size of an
// array, an id_type that does not hold every id. Reads no memory.
[[nodiscard]] absl::Status CheckExpand(const PackedTensors& tensors);
// InvalidArgument for a row of host memory that has an id that is not below E, and does not get the
// fill. REQUIRES: CheckExpand.
[[nodiscard]] absl::Status CheckExpandIds(const PackedTensors& tensors);
// On the host. REQUIRES: CheckExpand. Any thread.
void ExpandOnHost(const PackedTensors& tensors);
// The same as a call of kernels::GatherRowsOnCuda. REQUIRES: CheckExpand.
[[nodiscard]] kernels::CudaGather GatherOf(const PackedTensors& tensors);

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_EXPAND_H_
