// DerivedEvents: the events of a step that its slots tell (StepBatch::derive_events). Internal to
// blockstore.
//
// Most steps of an engine only decode: each request computes one token. All that happens to blocks
// is then in the slots: a request that gets a block writes the block's first row in the same step,
// and a block is full when its last row is written. So the engine has nothing to report for such a
// step.
//
// A first row is a decode's if the step writes no other row of its block behind it. If it is a
// prompt's, then the engine has reported a Bind of the block, too: binding a block again that has
// one row loses nothing.
#ifndef WAYMARK_BLOCKSTORE_STORE_DERIVED_EVENTS_H_
#define WAYMARK_BLOCKSTORE_STORE_DERIVED_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/ids.h"

namespace waymark {

// Reads the events of a step a piece at a time. A value.
class DerivedEvents {
 public:
  // The most events of a piece.
  static constexpr std::size_t kPiece = 128;

  // slots: block * block_tokens + offset of each row, kPaddingSlot, or NotAsked(slot); they must
  // outlive the object. With block_tokens 1 there are no events: a block could be hit in the step
  // that binds it.
  DerivedEvents(std::span<const std::int64_t> slots, std::int32_t block_tokens)
      : rest_(slots), block_tokens_(block_tokens) {}
  // Replaces `events` by the next ones, in the order of the rows: a Seal without a key, by the step
  // itself, for each block whose last row the step writes, and a Bind for each whose first row it
  // writes alone. False, with no events, behind the last one. Allocates nothing if `events` has
  // capacity for kPiece.
  bool Next(std::vector<Event>& events);

 private:
  std::span<const std::int64_t> rest_;
  std::int32_t block_tokens_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_DERIVED_EVENTS_H_
