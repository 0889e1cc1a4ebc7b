#include "blockstore/store/expert_counter.h"

#include <algorithm>

namespace waymark {

void ExpertCounter::Add(const RoutingShape& shape, std::uint64_t version,
                        std::span<const std::uint8_t* const> rows) {
  const auto experts = static_cast<std::size_t>(shape.num_experts);
  const auto k = static_cast<std::size_t>(shape.top_k);
  const MutexLock lock(mutex_);
  auto counts = std::find_if(counts_.begin(), counts_.end(),
                             [&](const ExpertCounts& c) { return c.version == version; });
  if (counts == counts_.end()) {
    const std::size_t layers = static_cast<std::size_t>(shape.num_layers);
    counts_.push_back({version, std::vector<std::uint64_t>(layers * experts)});
    counts = counts_.end() - 1;
  }
  for (const std::uint8_t* row : rows) {
    if (row == nullptr) continue;
    for (std::size_t i = 0; i < shape.row_ids(); ++i) {
      std::size_t id = row[i];
      if (shape.id_bytes() == 2) id = row[2 * i] | static_cast<std::size_t>(row[2 * i + 1]) << 8;
      ++counts->counts[i / k * experts + id];
    }
  }
}

std::vector<ExpertCounts> ExpertCounter::Get() {
  const MutexLock lock(mutex_);
  return counts_;
}

}  // namespace waymark
