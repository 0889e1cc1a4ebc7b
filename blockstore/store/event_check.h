// EventCheck: the rules for events that need no state. Internal to blockstore; engine's thread,
// without the mutex.
#ifndef WAYMARK_BLOCKSTORE_STORE_EVENT_CHECK_H_
#define WAYMARK_BLOCKSTORE_STORE_EVENT_CHECK_H_

#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/step_code.h"

namespace waymark {

class EventCheck {
 public:
  // As in StoreOptions.
  EventCheck(std::int32_t num_blocks, std::int32_t block_tokens);

  // The first rule that the events break, or ok. No seal may be later than `last`, the last step that
  // was begun, and `own`, the step that is begun next, if it is known (else 0).
  StepCode Events(std::span<const Event> events, std::uint64_t last, std::uint64_t own);

 private:
  [[nodiscard]] StepCode OneEvent(const Event& event, std::uint64_t index, std::uint64_t last,
                                  std::uint64_t own) const;
  // A group of simultaneous moves.
  StepCode Moves(std::span<const Event> events);

  const std::int32_t num_blocks_;
  const std::int32_t block_tokens_;
  std::vector<std::int32_t> move_blocks_;  // scratch of Moves
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_EVENT_CHECK_H_
