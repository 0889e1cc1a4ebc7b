// The map of `waymark diff --html`: rows from left to right, layers from top to bottom.
#ifndef WAYMARK_ADAPTERS_CLI_DIFF_MAP_H_
#define WAYMARK_ADAPTERS_CLI_DIFF_MAP_H_

#include <string>

#include "adapters/cli/diff_text.h"
#include "adapters/cli/routing_diff.h"

namespace waymark::cli {

// Appends an <svg> and its legend: the map, a bar a column above it, a bar a layer beside it, each
// with its numbers as a tooltip. Neighbouring rows share a column where there are more than a
// screen has room for; only what differs is drawn. Colours are classes of the page's style: same,
// none, d1 ... d5 (k0, kn, k1 ... k5 in the legend), bar, axis, split, hatch.
void AppendDiffMap(const DiffSide& a, const DiffSide& b, const RoutingDiff& diff, std::string& out);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DIFF_MAP_H_
