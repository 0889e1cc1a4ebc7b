// The events of blocks that decodes begin and fill, from the slots of a step.
//
// Most steps of an engine only decode: each request computes one token. All that happens to blocks
// is then in the slots: a request that gets a block writes the block's first row in the same step,
// and a block is full when its last row is written. So the scheduler has nothing to report for such
// a step, and the worker derives the events.
//
// A row is a decode's if no other row of the step lies beside it in the same block. Rows of prompts
// and drafts that happen to be alone are treated alike: their blocks are bound by the scheduler's
// message, too, and a block with one row loses nothing when it is bound again.
#ifndef WAYMARK_ADAPTERS_VLLM_DECODE_EVENTS_H_
#define WAYMARK_ADAPTERS_VLLM_DECODE_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/events.h"
#include "blockstore/ids.h"

namespace waymark {

// Writes a Bind for each block whose first row a decode writes, and a Seal without a key for each
// whose last row one writes, in the order of the rows; returns their number. They are the events of
// the step's batch, behind those of its schedule message.
//
// slots: block * block_tokens + offset of each row, -1 (padding), or NotAsked(slot). Rows of
// `null_block` are ignored. events: room for as many as there are slots. block_tokens: at least 2; with 1, a block
// could be hit in the step that binds it, and 0 is returned.
[[nodiscard]] std::size_t DecodeEvents(std::span<const std::int64_t> slots,
                                       std::int32_t block_tokens, BlockId null_block,
                                       std::span<Event> events);

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_VLLM_DECODE_EVENTS_H_
