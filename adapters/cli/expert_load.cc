#include "adapters/cli/expert_load.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

namespace waymark::cli {

std::vector<LayerLoad> LoadOf(const Rows& rows) {
  const RoutingShape& shape = rows.shape;
  const std::size_t experts = static_cast<std::size_t>(shape.num_experts);
  const std::size_t layers = static_cast<std::size_t>(shape.num_layers);
  const std::size_t top_k = static_cast<std::size_t>(shape.top_k);
  std::vector<std::uint64_t> counts(layers * experts, 0);
  std::uint64_t valid = 0;
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    if (!rows.infos[static_cast<std::size_t>(i)].valid()) continue;
    ++valid;
    const std::uint8_t* row = rows.row(i).data();
    for (std::size_t n = 0; n < layers * top_k; ++n) {
      std::uint16_t id = row[n];
      if (shape.id_bytes() == 2) std::memcpy(&id, row + 2 * n, 2);
      ++counts[n / top_k * experts + id];
    }
  }
  std::vector<LayerLoad> loads;
  if (valid == 0) return loads;
  const double choices = static_cast<double>(valid) * static_cast<double>(top_k);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::span<const std::uint64_t> of = std::span(counts).subspan(layer * experts, experts);
    LayerLoad load;
    const auto most = std::max_element(of.begin(), of.end());
    const auto least = std::min_element(of.begin(), of.end());
    load.most_used = static_cast<std::int32_t>(most - of.begin());
    load.least_used = static_cast<std::int32_t>(least - of.begin());
    load.most_share = static_cast<double>(*most) / choices;
    load.least_share = static_cast<double>(*least) / choices;
    load.unused = static_cast<std::int32_t>(std::count(of.begin(), of.end(), 0u));
    double entropy = 0;
    for (const std::uint64_t count : of) {
      if (count == 0) continue;
      const double share = static_cast<double>(count) / choices;
      entropy -= share * std::log(share);
    }
    load.entropy = experts == 1 ? 1 : entropy / std::log(static_cast<double>(experts));
    loads.push_back(load);
  }
  return loads;
}

}  // namespace waymark::cli
