// Invalid: the status of an argument that breaks a rule.
#ifndef WAYMARK_BLOCKSTORE_INVALID_H_
#define WAYMARK_BLOCKSTORE_INVALID_H_

#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace waymark {

// InvalidArgument with these parts, which name the argument, the rule and the value.
template <class... Parts>
[[nodiscard]] absl::Status Invalid(const Parts&... parts) {
  // Abseil's string_view may be a type of its own.
  const auto of = []<class Part>(const Part& part) {
    if constexpr (std::is_same_v<Part, std::string_view>) {
      return absl::string_view(part.data(), part.size());
    } else {
      return part;
    }
  };
  return absl::InvalidArgumentError(absl::StrCat(of(parts)...));
}

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_INVALID_H_
