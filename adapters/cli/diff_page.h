// The page of `waymark diff --html`.
#ifndef WAYMARK_ADAPTERS_CLI_DIFF_PAGE_H_
#define WAYMARK_ADAPTERS_CLI_DIFF_PAGE_H_

#include <string>

#include "adapters/trainer/routing_diff.h"
#include "blockstore/rows.h"

namespace waymark::cli {

// One of the two files that are compared.
struct DiffSide {
  std::string name;            // any text, usually the path; not escaped
  const Rows* rows = nullptr;  // not owned
};

// A page that needs nothing but itself: a map of rows and layers whose cells are darker where more
// ids differ, and the counts of each layer.
[[nodiscard]] std::string DiffPage(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DIFF_PAGE_H_
