// Arrays as nested JSON lists, [rows][layers][top_k]. Any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_NESTED_LISTS_H_
#define WAYMARK_ADAPTERS_FORMATS_NESTED_LISTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "adapters/formats/json_value.h"
#include "adapters/formats/routing_array.h"

namespace waymark::formats {

// Makes an array of this dtype from nested lists. InvalidArgument naming the first list that
// differs in length or kind from the one before it, a number of levels other than three, or a
// number that `dtype` cannot hold; ResourceExhausted beyond the limits.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadLists(const JsonValue& lists, Dtype dtype,
                                                     const Limits& limits);

// Appends `array` to `text` as nested lists, without white space.
void AppendLists(const RoutingArray& array, std::string& text);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_NESTED_LISTS_H_
