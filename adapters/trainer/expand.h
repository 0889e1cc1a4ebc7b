// Packed rows of a rank (RouterTensors::packed) become the tensors of its routers where these are.
//
// For tensors in a device's memory: the rows cross the bus as they are stored, a byte an id up to
// 256 experts, and are widened there by kernels::GatherRowsOnCuda, of whose calls this is one. In
// host memory numpy does it.
#ifndef WAYMARK_ADAPTERS_TRAINER_EXPAND_H_
#define WAYMARK_ADAPTERS_TRAINER_EXPAND_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/shape.h"
#include "kernels/pack_cuda.h"

namespace waymark {

// The type in which ids of `num_experts` experts are stored.
[[nodiscard]] constexpr IdType StoredIdType(std::int32_t num_experts) {
  return num_experts <= 256 ? IdType::kUint8 : IdType::kUint16;
}

// InvalidArgument unless an id of every expert fits the type, and the fill is none of them.
[[nodiscard]] absl::Status CheckHolds(IdType id_type, std::int32_t num_experts, Fill fill);

// Widens `rows` packed rows of `shape`, [rows][L][K] of StoredIdType, to [L][rows][K] of id_type in
// C order; rows whose mask is 0 get the fill. All memory is a device's. InvalidArgument, naming the
// argument, the rule and the value: numbers out of range, an id_type that does not hold every id.
// Reads no memory.
[[nodiscard]] absl::StatusOr<kernels::CudaGather> GatherOf(const RoutingShape& shape,
                                                           std::int64_t rows, const void* packed,
                                                           const void* mask, void* ids,
                                                           IdType id_type, Fill fill);

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_EXPAND_H_
