// ExpertCounter: how often the landed rows of each version chose each expert. Internal to
// blockstore. Any thread.
#ifndef WAYMARK_BLOCKSTORE_STORE_EXPERT_COUNTER_H_
#define WAYMARK_BLOCKSTORE_STORE_EXPERT_COUNTER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/mutex.h"
#include "blockstore/shape.h"
#include "blockstore/store/stats.h"

namespace waymark {

class ExpertCounter {
 public:
  // Counts rows of row_bytes() bytes each, of a step of `version`. Null: not counted.
  void Add(const RoutingShape& shape, std::uint64_t version,
           std::span<const std::uint8_t* const> rows) ABSL_LOCKS_EXCLUDED(mutex_);
  // One entry per version, in the order of first use.
  [[nodiscard]] std::vector<ExpertCounts> Get() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  std::vector<ExpertCounts> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_EXPERT_COUNTER_H_
