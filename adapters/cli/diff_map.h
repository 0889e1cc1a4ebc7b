// The map on the page of `waymark diff --html`: rows from left to right, layers from top to bottom.
#ifndef WAYMARK_ADAPTERS_CLI_DIFF_MAP_H_
#define WAYMARK_ADAPTERS_CLI_DIFF_MAP_H_

#include <string>

#include "adapters/cli/diff_text.h"
#include "adapters/trainer/routing_diff.h"

namespace waymark::cli {

// Appends an <svg> and its legend to `out`: the map, above it one bar per column, beside it one bar
// per layer, each with its numbers as a tooltip. If there are more than 480 rows, neighbouring rows
// share a column. Only cells that differ are drawn. Colours are the CSS classes same, none,
// d1 ... d5 (k0, kn, k1 ... k5 in the legend), bar, axis, split and hatch, which the page defines.
void AppendDiffMap(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff, std::string& out);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DIFF_MAP_H_
