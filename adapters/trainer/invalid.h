// Invalid: the status of an argument that breaks a rule. Internal to this folder.
#ifndef WAYMARK_ADAPTERS_TRAINER_INVALID_H_
#define WAYMARK_ADAPTERS_TRAINER_INVALID_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waymark {

// InvalidArgument with these parts, which name the argument, the rule and the value.
template <class... Parts>
[[nodiscard]] absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_INVALID_H_
