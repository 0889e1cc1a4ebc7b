// BatchCheck: the checks of a step batch that BeginStep makes before it changes anything. Internal
// to blockstore; engine's thread, without the mutex.
#ifndef WAYMARK_BLOCKSTORE_STORE_BATCH_CHECK_H_
#define WAYMARK_BLOCKSTORE_STORE_BATCH_CHECK_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/step_code.h"
#include "blockstore/store/store.h"

namespace waymark {

class BatchCheck {
 public:
  // `options`: as RoutingStore::Create completed them.
  explicit BatchCheck(const StoreOptions& options);

  // The first rule that the batch breaks, or ok. `last`: the last step that was begun.
  StepCode Batch(const StepBatch& batch, std::uint64_t last);
  // The same for events, of which no seal may name a step after `step`.
  StepCode Events(std::span<const Event> events, std::uint64_t step);

 private:
  [[nodiscard]] StepCode OneEvent(const Event& event, std::uint64_t index,
                                  std::uint64_t step) const;
  // A group of simultaneous moves.
  StepCode Moves(std::span<const Event> events);
  [[nodiscard]] StepCode Slots(std::span<const std::int64_t> slots) const;

  const std::int32_t num_blocks_;
  const std::int32_t block_tokens_;
  const std::int64_t num_slots_;
  const std::uint32_t max_step_rows_;
  const bool device_slots_;
  std::vector<std::int32_t> move_blocks_;  // scratch of Moves
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_BATCH_CHECK_H_
