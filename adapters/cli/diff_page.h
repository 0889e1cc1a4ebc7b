// The page of `waymark diff --html`: one file, without scripts or anything from elsewhere.
#ifndef WAYMARK_ADAPTERS_CLI_DIFF_PAGE_H_
#define WAYMARK_ADAPTERS_CLI_DIFF_PAGE_H_

#include <string>

#include "adapters/cli/diff_text.h"
#include "adapters/cli/routing_diff.h"

namespace waymark::cli {

// The page. At most some megabytes, however many rows there are: neighbouring rows share a column
// of the map where there are more than a screen has room for.
[[nodiscard]] std::string DiffPage(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DIFF_PAGE_H_
