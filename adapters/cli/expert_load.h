// ExpertLoad: how often each expert of each layer was chosen.
#ifndef WAYMARK_ADAPTERS_CLI_EXPERT_LOAD_H_
#define WAYMARK_ADAPTERS_CLI_EXPERT_LOAD_H_

#include <cstdint>
#include <vector>

#include "blockstore/rows.h"

namespace waymark::cli {

// The load of one layer, over the valid rows.
struct LayerLoad {
  std::int32_t most_used = 0;   // the lowest of those chosen most often
  std::int32_t least_used = 0;  // the lowest of those chosen least often
  double most_share = 0;        // of all choices of the layer, in [0, 1]
  double least_share = 0;
  std::int32_t unused = 0;  // experts that no row chose
  // Entropy of the shares over that of equal shares, in [0, 1]; 1 where there is one expert.
  double entropy = 0;
};

// One a layer; empty when no row is valid.
[[nodiscard]] std::vector<LayerLoad> LoadOf(const Rows& rows);

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_EXPERT_LOAD_H_
