// The page of `waymark diff --html`: one self-contained HTML file, without scripts.
#ifndef WAYMARK_ADAPTERS_CLI_DIFF_PAGE_H_
#define WAYMARK_ADAPTERS_CLI_DIFF_PAGE_H_

#include <string>

#include "adapters/cli/diff_text.h"
#include "adapters/trainer/routing_diff.h"

namespace waymark::cli {

// The whole page as HTML. At most a few megabytes, however many rows there are: the map has at most
// 480 columns, and the table of rows at most 200 lines.
[[nodiscard]] std::string DiffPage(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DIFF_PAGE_H_
