// ExpertCounter: how often the landed rows of each version chose each expert, for the versions that
// were counted last. Internal to blockstore. Any thread.
#ifndef WAYMARK_BLOCKSTORE_STORE_EXPERT_COUNTER_H_
#define WAYMARK_BLOCKSTORE_STORE_EXPERT_COUNTER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/mutex.h"
#include "blockstore/shape.h"
#include "blockstore/store/stats.h"

namespace waymark {

class ExpertCounter {
 public:
  // Keeps the counts of at most `versions` versions, at least 1: num_layers * num_experts * 8 bytes
  // each, allocated when the first row of a version is counted and reused for later versions.
  explicit ExpertCounter(std::uint32_t versions) : max_versions_(versions) {}

  // Counts rows of row_bytes() bytes each, of a step of `version`. Null: not counted. The counts of
  // a further version replace those of the version whose first row was counted before all others.
  void Add(const RoutingShape& shape, std::uint64_t version,
           std::span<const std::uint8_t* const> rows) ABSL_LOCKS_EXCLUDED(mutex_);
  // The versions that are kept, in the order of their first rows.
  [[nodiscard]] std::vector<std::uint64_t> Versions() ABSL_LOCKS_EXCLUDED(mutex_);
  // Copies the counts of one version. NotFound, naming the version, if they are not kept.
  [[nodiscard]] absl::StatusOr<ExpertCounts> Of(std::uint64_t version) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The counts of `version`, or null.
  [[nodiscard]] ExpertCounts* Find(std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::size_t max_versions_;
  Mutex mutex_;
  std::vector<ExpertCounts> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_EXPERT_COUNTER_H_
