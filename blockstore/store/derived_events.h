// DerivedEvents: the events of a step that its slots tell (StepBatch::derive_events). Internal to
// blockstore.
//
// Most steps of an engine only decode: each request computes one token. All that happens to blocks
// is then in the slots: a request that gets a block writes the block's first row in the same step,
// and a block is full when its last row is written. So the engine has nothing to report for such a
// step.
//
// A first row is a decode's if the step writes no other row of its block. If it is a prompt's, then
// the engine has reported a Bind of the block, too: binding a block again that has one row loses
// nothing, unless further requests use it already.
#ifndef WAYMARK_BLOCKSTORE_STORE_DERIVED_EVENTS_H_
#define WAYMARK_BLOCKSTORE_STORE_DERIVED_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/ids.h"

namespace waymark {

// Reads the events of one step after the other, a piece at a time.
class DerivedEvents {
 public:
  // The most events of a piece.
  static constexpr std::size_t kPiece = 128;

  // max_rows: that a step has. REQUIRES: at least 2 tokens a block, for steps that are to be read.
  // In a block of one token every row is the first and the last, so a prompt's could not be told
  // from a decode's.
  DerivedEvents(std::int32_t num_blocks, std::int32_t block_tokens, std::size_t max_rows);
  // Begins with a step. slots: block * block_tokens + offset of each row, kPaddingSlot, or
  // NotAsked(slot), all of blocks below num_blocks. O(slots); allocates nothing.
  void Start(std::span<const std::int64_t> slots);
  // Replaces `events` by the next ones, in the order of the rows: a Seal without a key, by the step
  // itself, for each block whose last row the step writes, and a Bind for each of which it writes
  // the first row and no other. False, with no events, behind the last one. Allocates nothing if
  // `events` has capacity for kPiece.
  bool Next(std::vector<Event>& events);

 private:
  struct Blocks {
    std::uint64_t tokens;
    int shift;  // log2 of tokens; -1: not a power of two. A division would be most of the work
    [[nodiscard]] std::uint64_t Of(std::uint64_t slot) const {
      return shift >= 0 ? slot >> shift : slot / tokens;
    }
    [[nodiscard]] std::uint64_t OffsetOf(std::uint64_t slot) const {
      return shift >= 0 ? slot & (tokens - 1) : slot % tokens;
    }
  };

  const Blocks blocks_;
  std::vector<std::uint64_t> slots_;  // of the step: of first and of last rows
  std::size_t next_ = 0;              // in slots_
  std::vector<bool> first_alone_;     // by block; all false behind Next
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_DERIVED_EVENTS_H_
