// Arrays as nested JSON lists [rows][layers][top_k].
#ifndef WAYMARK_PLUGIN_FORMATS_NESTED_LISTS_H_
#define WAYMARK_PLUGIN_FORMATS_NESTED_LISTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "plugin/formats/json_value.h"
#include "plugin/formats/routing_array.h"

namespace waymark::formats {

// InvalidArgument naming the first list that differs from those before it, another number of
// levels, or a number that `dtype` does not have; ResourceExhausted beyond the limits.
[[nodiscard]] absl::StatusOr<RoutingArray> ReadLists(const JsonValue& lists, Dtype dtype,
                                                     const Limits& limits);

// Appends the lists, without white space.
void AppendLists(const RoutingArray& array, std::string& text);

}  // namespace waymark::formats

#endif  // WAYMARK_PLUGIN_FORMATS_NESTED_LISTS_H_
