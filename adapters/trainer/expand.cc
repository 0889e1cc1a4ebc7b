#include "adapters/trainer/expand.h"

#include <cstdint>

#include "blockstore/invalid.h"
#include "blockstore/shape.h"
#include "plugin/capture/ids_kind.h"

namespace waymark {

absl::Status CheckHolds(IdType id_type, std::int32_t num_experts, Fill fill) {
  const std::int32_t most = id_type == IdType::kUint8   ? 256
                            : id_type == IdType::kInt16 ? 32768
                                                        : 65536;
  if (num_experts > most) return Invalid("id_type: must hold ids up to ", num_experts - 1);
  if (fill == Fill::kMinusOne && id_type == IdType::kUint8 && num_experts == most)
    return Invalid("fill: must not be minus_one in uint8, where it is 255, an expert of ", most);
  return absl::OkStatus();
}

absl::StatusOr<kernels::CudaGather> GatherOf(const RoutingShape& shape, std::int64_t rows,
                                             const void* packed, const void* mask, void* ids,
                                             IdType id_type, Fill fill) {
  if (absl::Status status = shape.Validate(); !status.ok()) return status;
  constexpr std::int64_t kMostRows = 0x7fffffff;
  if (rows < 0 || rows > kMostRows) {
    return Invalid("rows: must be in [0, ", kMostRows, "], got ", rows);
  }
  if (absl::Status status = CheckHolds(id_type, shape.num_experts, fill); !status.ok()) {
    return status;
  }
  kernels::CudaGather gather;
  gather.shape = ToRowShape(shape);
  gather.packed = static_cast<const std::uint8_t*>(packed);
  gather.valid = static_cast<const std::uint8_t*>(mask);
  gather.rows = rows;
  gather.out = ids;
  gather.kind = ToKind(id_type);
  static_assert(static_cast<int>(kernels::MissingFill::kZeros) == static_cast<int>(Fill::kZeros) &&
                static_cast<int>(kernels::MissingFill::kArange) == static_cast<int>(Fill::kArange));
  gather.fill = static_cast<kernels::MissingFill>(fill);
  return gather;
}

}  // namespace waymark
