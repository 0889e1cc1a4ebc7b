// VllmScheduler: what the scheduler of a vLLM-like engine did, written as schedule messages.
//
// Such an engine has a pool of KV blocks, and requests that have lists of blocks. After each
// schedule the engine calls this class once for each request whose blocks changed, and for each
// request that is preempted or has finished, before its blocks are freed. From these lists the
// class derives the events of the store: no hook in the block pool is needed, and the work is
// proportional to what changed. The messages (blockstore/store/schedule_message.h) go to the worker
// with the schedule.
//
//   the engine                            the message
//   new, resumed: blocks of prefix hits   Retain
//                 blocks of a KV load     Bind with key (of one that has none: a key that no block
//                                         has), Seal
//                 other blocks            Bind
//   blocks that a request gets            Bind
//   blocks that are full                  Seal
//   a copy on write                       Bind, Copy
//   preempted, finished                   snapshot, Release
//   the prefix cache is reset             Reset
//
// Blocks of decodes need no event of the scheduler where the worker's store derives them
// (StepBatch::derive_events). Of a request that only decodes nothing has to be reported before it
// leaves: its blocks then (Extend), and that it leaves.
//
// A schedule has one message, or several where one would be larger than ScheduleLimits::max_bytes
// or max_snapshots: FinishMessage is called again as long as more() says so. Nothing that is
// reported is refused for its size, but a snapshot that no message can hold.
//
// The order of calls. Between two calls of Preempt, Finish and Reset, the others may come in any
// order: blocks are bound before they are retained, copied or sealed. So a request may hit blocks
// that another request fills in the same step, whichever is reported first.
//
// Example, a schedule in which request 1 finishes and request 2 gets its blocks:
//
//   absl::Status status = scheduler.Finish(1, 40, tag);      // before the blocks are freed
//   if (status.ok()) status = scheduler.Begin(StepId(7), version);
//   if (status.ok()) status = scheduler.New(2, blocks, {.local_tokens = 16}, hashes);
//   if (status.ok()) status = scheduler.Append(2, {}, 33, hashes);  // this step computes 33 tokens
//   // Again as long as scheduler.more().
//   absl::StatusOr<std::span<const std::uint8_t>> message = scheduler.FinishMessage();
#ifndef WAYMARK_ADAPTERS_VLLM_VLLM_SCHEDULER_H_
#define WAYMARK_ADAPTERS_VLLM_VLLM_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/store/schedule_message.h"

namespace waymark {

struct VllmSchedulerOptions {
  ScheduleLimits limits;  // those of the worker's store; num_blocks and block_tokens are required
  // Tokens of a block hash; divides block_tokens. 0: equal to it.
  std::int32_t hash_block_tokens = 0;
  // The block that stands for "no block"; it gets no events, as negative ids do not.
  BlockId null_block{0};

  // InvalidArgument naming the field, the rule and the value.
  [[nodiscard]] absl::Status Validate() const;
};

// The hashes of a request's prefix: `keys[i]` is that of its hash block `first + i`, which ends at
// token (first + i + 1) * hash_block_tokens. No keys at all: the engine has no prefix cache; blocks
// are then sealed without a key. A hash that is needed and not given is an error.
struct BlockHashes {
  std::int64_t first = 0;
  std::span<const BlockKey> keys;
};

// The leading tokens whose KV a request has before its first forward.
struct CachedTokens {
  std::int64_t local_tokens = 0;  // found in the engine's own prefix cache
  // Loaded behind them, from another engine or an offloaded cache.
  std::int64_t external_tokens = 0;
};

// One thread at a time. A request is a number that the caller chooses; it is known from New to
// Finish.
//
// Errors, of every call: InvalidArgument naming the argument, the rule and the value;
// FailedPrecondition if no message is open (Begin: if one is open) or if the request was preempted;
// ResourceExhausted for a snapshot of more blocks than a message holds. A refused call changes
// nothing, but for Preempt and Finish with ResourceExhausted: they have released the blocks,
// without a snapshot.
class VllmScheduler {
 public:
  [[nodiscard]] static absl::StatusOr<VllmScheduler> Create(const VllmSchedulerOptions& options);
  VllmScheduler(VllmScheduler&&) = default;
  VllmScheduler& operator=(VllmScheduler&&) = default;

  // Opens the message of the schedule of `step`, whose weights have this version. StepId() opens a
  // message without a step, for a schedule of 0 tokens; `version` is then 0.
  [[nodiscard]] absl::Status Begin(StepId step, std::uint64_t version);

  // ---- while a message is open

  // A request is scheduled for the first time. `blocks` are all its blocks, with those of `cached`
  // in front. Of `hashes`, those at the ends of the blocks of external tokens are read.
  [[nodiscard]] absl::Status New(std::uint64_t request, std::span<const BlockId> blocks,
                                 const CachedTokens& cached, const BlockHashes& hashes);
  // The same for a request that was preempted: `blocks` replace its former ones. A request that was
  // not (a session with new input) goes on with its blocks, which are in front of `blocks`;
  // `cached` is then not read.
  [[nodiscard]] absl::Status Resume(std::uint64_t request, std::span<const BlockId> blocks,
                                    const CachedTokens& cached, const BlockHashes& hashes);
  // `blocks` are appended to those of a request, and every block that ends at or before
  // `full_tokens` is sealed, unless it is already. `full_tokens` are the leading tokens that are
  // computed and accepted after this step: drafts do not count, so that none that is rejected has
  // to be taken back. Of `hashes`, those at the ends of
  // the blocks that are sealed are read: none of a block before Sealed(). Without blocks a message
  // need not be open: so the last full block of a request is sealed before it leaves.
  [[nodiscard]] absl::Status Append(std::uint64_t request, std::span<const BlockId> blocks,
                                    std::int64_t full_tokens, const BlockHashes& hashes);
  // Writes what was reported since the last message, or, if it needs several messages, the next of
  // them. The bytes are valid until the next call of this object; they must be sent, in order. If
  // this fails, what was reported is lost: the worker's store notices that at the next message, and
  // its blocks lose their rows.
  [[nodiscard]] absl::StatusOr<std::span<const std::uint8_t>> FinishMessage();
  // Whether the schedule has another message: it stays open, and FinishMessage must be called again
  // before the next Begin.
  [[nodiscard]] bool more() const { return more_; }

  // ---- at any time: without an open message they are kept, and written first into the next one

  // A request is preempted: requests a snapshot of its rows [0, rows) under `tag`, then releases
  // its blocks. Without a tag no snapshot is taken, and `rows` is not read. Called before the
  // engine frees the blocks.
  [[nodiscard]] absl::Status Preempt(std::uint64_t request, std::int64_t rows,
                                     std::optional<std::uint64_t> tag);
  // The same for a request that has finished or was aborted, which is then no longer known. If it
  // was preempted it has no blocks: rows is then 0.
  [[nodiscard]] absl::Status Finish(std::uint64_t request, std::int64_t rows,
                                    std::optional<std::uint64_t> tag);
  // `blocks` are appended to those of a request, and no event is written: the worker's store
  // derives them from the slots of the decodes that begin and fill these blocks.
  [[nodiscard]] absl::Status Extend(std::uint64_t request, std::span<const BlockId> blocks);
  // The engine copies block `src` to `dst`, before a request gets `dst` in this schedule: a prefix
  // hit that ends inside a block. Ignored if no request gets it.
  [[nodiscard]] absl::Status Copy(BlockId src, BlockId dst);
  // The prefix cache is reset, and no request has blocks.
  [[nodiscard]] absl::Status Reset();

  // ---- queries

  // The leading blocks of a request that are sealed, or were hits. InvalidArgument if it is not
  // known.
  [[nodiscard]] absl::StatusOr<std::int64_t> Sealed(std::uint64_t request) const;
  [[nodiscard]] std::size_t num_requests() const { return requests_.size(); }
  [[nodiscard]] const VllmSchedulerOptions& options() const { return options_; }

 private:
  struct Request {
    std::vector<BlockId> blocks;  // in order
    std::int64_t sealed = 0;      // leading blocks that are sealed, or were hits
    bool preempted = false;       // it has no blocks
  };
  struct BlockCopy {
    BlockId src, dst;
    std::int32_t rows = Event::kAllRows;
    bool bound = false;  // a request has got dst
  };
  // A map that is as it was when there is no memory.
  using Requests = std::unordered_map<std::uint64_t, Request>;

  VllmScheduler(const VllmSchedulerOptions& options, ScheduleWriter writer)
      : options_(options), writer_(std::move(writer)) {}

  // The request, or an error. `preempted`: whether it may have been preempted.
  [[nodiscard]] absl::StatusOr<Request*> Find(std::uint64_t request, bool preempted = false);
  [[nodiscard]] absl::Status CheckOpen() const;
  [[nodiscard]] absl::Status CheckBlocks(std::span<const BlockId> blocks) const;
  // Whether the hashes at the ends of blocks [first, last) are given, if any is.
  [[nodiscard]] absl::Status CheckHashes(std::int64_t first, std::int64_t last,
                                         const BlockHashes& hashes) const;
  [[nodiscard]] absl::Status CheckAdmission(std::span<const BlockId> blocks,
                                            const CachedTokens& cached,
                                            const BlockHashes& hashes) const;
  // The hash at the end of block `index`; empty if it is not given.
  [[nodiscard]] BlockKey KeyOf(std::int64_t index, const BlockHashes& hashes) const;
  [[nodiscard]] bool IsNull(BlockId block) const {
    return block.value() < 0 || block == options_.null_block;
  }
  // Reports all blocks of `r`, which are set.
  void Admit(Request& r, const CachedTokens& cached, const BlockHashes& hashes);
  // Reports a block that is allocated. `rows`: those that a copy on write onto it copies.
  void Bind(BlockId block, const BlockKey& key, std::int32_t rows);
  void AppendBlocks(Request& r, std::span<const BlockId> blocks);
  void SealBlocks(Request& r, std::int64_t end, const BlockHashes& hashes);
  // Requests the snapshot, if there is a tag, and releases the blocks.
  [[nodiscard]] absl::Status Leave(Request& r, std::int64_t rows, std::optional<std::uint64_t> tag);
  void PutEvents(std::span<const Event> events);
  // Moves the events of the calls so far behind the kept items.
  void Flush();
  // Consecutive events, or, with a tag, a snapshot.
  struct Item {
    std::optional<std::uint64_t> tag;
    std::int64_t rows = 0;  // of the snapshot
    std::size_t begin = 0;  // its events or blocks, in kept_events_ or kept_blocks_
    std::size_t end = 0;
  };
  // Writes an item, from written_events_ on. ResourceExhausted: the message is full. *any: set if
  // something was written.
  [[nodiscard]] absl::Status WriteItem(const Item& item, bool* any);

  VllmSchedulerOptions options_;
  ScheduleWriter writer_;
  bool open_ = false;
  bool more_ = false;
  StepId step_;  // of the open schedule
  std::uint64_t version_ = 0;
  Requests requests_;
  std::vector<Item> kept_;  // what the next messages contain so far, in order
  std::vector<Event> kept_events_;
  std::vector<BlockId> kept_blocks_;
  // Of kept_, what was written already: items, and events of the next item.
  std::size_t written_items_ = 0;
  std::size_t written_events_ = 0;
  // Behind kept_, in this order.
  std::vector<Event> binds_;
  std::vector<Event> changes_;     // Retain, Release, Copy, Reset
  std::vector<BlockCopy> copies_;  // not yet in changes_
  std::vector<Event> seals_;
};

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_VLLM_VLLM_SCHEDULER_H_
