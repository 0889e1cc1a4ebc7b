// ExpertLoad: how often each expert of each layer was chosen.
#ifndef WAYMARK_ADAPTERS_CLI_EXPERT_LOAD_H_
#define WAYMARK_ADAPTERS_CLI_EXPERT_LOAD_H_

#include <cstdint>
#include <vector>

#include "blockstore/rows.h"

namespace waymark::cli {

// The load of one layer, over the valid rows. The share of an expert is the number of rows that
// chose it over the number of all choices, rows * K.
struct LayerLoad {
  std::int32_t most_used = 0;   // the expert chosen most often; the lowest of several
  std::int32_t least_used = 0;  // the expert chosen least often; the lowest of several
  double most_share = 0;        // its share, in [0, 1]
  double least_share = 0;
  std::int32_t unused = 0;  // number of experts that no row chose
  // The entropy of the shares, divided by log(E), the entropy of equal shares: in [0, 1]; 1 if
  // there is one expert.
  double entropy = 0;
};

// One per layer; empty if no row is valid.
[[nodiscard]] std::vector<LayerLoad> LoadOf(const Rows& rows);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_EXPERT_LOAD_H_
