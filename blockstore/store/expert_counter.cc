#include "blockstore/store/expert_counter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace waymark {

void ExpertCounter::Add(const RoutingShape& shape, std::uint64_t version,
                        std::span<const std::uint8_t* const> rows) {
  const auto experts = static_cast<std::size_t>(shape.num_experts);
  const auto k = static_cast<std::size_t>(shape.top_k);
  const MutexLock lock(mutex_);
  ExpertCounts* counts = Find(version);
  if (counts == nullptr && counts_.size() < max_versions_) {
    const std::size_t layers = static_cast<std::size_t>(shape.num_layers);
    counts_.push_back({version, std::vector<std::uint64_t>(layers * experts)});
    counts = &counts_.back();
  } else if (counts == nullptr) {
    std::rotate(counts_.begin(), counts_.begin() + 1, counts_.end());
    counts = &counts_.back();
    counts->version = version;
    std::fill(counts->counts.begin(), counts->counts.end(), std::uint64_t{0});
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

ExpertCounts* ExpertCounter::Find(std::uint64_t version) {
  const auto found = std::find_if(counts_.begin(), counts_.end(), [version](const ExpertCounts& c) {
    return c.version == version;
  });
  return found == counts_.end() ? nullptr : &*found;
}

std::vector<std::uint64_t> ExpertCounter::Versions() {
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> versions;
  for (const ExpertCounts& counts : counts_)
    versions.push_back(counts.version);
  return versions;
}

absl::StatusOr<ExpertCounts> ExpertCounter::Of(std::uint64_t version) {
  const MutexLock lock(mutex_);
  if (const ExpertCounts* counts = Find(version)) return *counts;
  return absl::NotFoundError(
      absl::StrCat("version: must be one whose expert counts are kept, got ", version));
}

}  // namespace waymark
