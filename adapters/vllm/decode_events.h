// The events of a step that its slots tell.
//
// Most steps of an engine only decode: each request computes one token. All that happens to blocks
// is then in the slots: a request that gets a block writes the block's first row in the same step,
// and a block is full when its last row is written. So the scheduler has nothing to report for such
// a step, and the worker derives the events. Not with drafts, which may be rejected, nor where
// blocks are found by their keys, which slots do not have.
//
// A first row is a decode's if the step writes no other row of its block. If it is a prompt's, then
// the scheduler's message has bound the block, too: binding a block again that has one row loses
// nothing.
#ifndef WAYMARK_ADAPTERS_VLLM_DECODE_EVENTS_H_
#define WAYMARK_ADAPTERS_VLLM_DECODE_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "blockstore/events.h"
#include "blockstore/ids.h"

namespace waymark {

// Writes a Seal without a key for each block whose last row the step writes, and a Bind for each
// whose first row it writes alone, in the order of the rows; returns their number. They are the
// events of the step's batch, behind those of its schedule message.
//
// slots: block * block_tokens + offset of each row, -1 (padding), or NotAsked(slot). Rows of
// `null_block` are ignored. events: room for as many as there are slots. block_tokens: at least 2;
// with 1, a block could be hit in the step that binds it, and 0 is returned.
[[nodiscard]] std::size_t DecodeEvents(std::span<const std::int64_t> slots,
                                       std::int32_t block_tokens, BlockId null_block,
                                       std::span<Event> events);

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_VLLM_DECODE_EVENTS_H_
