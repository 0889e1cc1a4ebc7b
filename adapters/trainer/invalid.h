// Invalid: the status of an argument that breaks a rule, and a rule that calls share. Internal to
// this folder.
#ifndef WAYMARK_ADAPTERS_TRAINER_INVALID_H_
#define WAYMARK_ADAPTERS_TRAINER_INVALID_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "blockstore/rows.h"

namespace waymark {

// InvalidArgument with these parts, which name the argument, the rule and the value.
template <class... Parts>
[[nodiscard]] absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// InvalidArgument unless an id of every expert fits the type, and the fill is none of them.
[[nodiscard]] inline absl::Status CheckHolds(IdType id_type, std::int32_t num_experts, Fill fill) {
  const std::int32_t most = id_type == IdType::kUint8   ? 256
                            : id_type == IdType::kInt16 ? 32768
                                                        : 65536;
  if (num_experts > most) return Invalid("id_type: must hold ids up to ", num_experts - 1);
  if (fill == Fill::kMinusOne && id_type == IdType::kUint8 && num_experts == most)
    return Invalid("fill: must not be minus_one in uint8, where it is 255, an expert of ", most);
  return absl::OkStatus();
}

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_INVALID_H_
