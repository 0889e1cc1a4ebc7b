// MegatronAdapter: reports to a store what an engine like Megatron does with its KV blocks.
//
// Such an engine is one process per rank: scheduler, block allocator and forward share a thread.
// So what happens goes straight into the store's log, in the order in which it happens, and this
// class keeps nothing of it. It keeps the snapshots of requests that have lost their blocks: an
// evicted request starts again with new blocks, and its result needs the rows of both lives.
//
//   the engine                                                    the store
//   allocates blocks                            Allocate          Bind
//   pins the blocks of a prefix match           Match             Retain
//   registers the hashes of prompt blocks       Register          Seal, with the hash as its key
//   releases blocks, repeated ids included      Release           Release
//   resets its cache                            Reset             Reset
//   begins a step                               Batch             the batch of BeginStep
//   is about to release a request's blocks      Checkpoint        a snapshot, which is kept
//   has finished, or forgets, a request         Take, Forget
//
// Nothing has to be reported where the engine deregisters hashes (no Bind of it has a key, and the
// next Bind ends the life of a block) or pauses a request (its blocks stay its own).
// Everything else that may happen to a block is reported to the store itself, which orders it with
// the calls of this class.
//
// In the example a request of 21 tokens is prefilled, with a hit of one block, and ends. `tokens`
// are the tokens of the forward, and `ids` their expert ids.
//
// Example, a step and the end of a request:
//
//   StepCode code = adapter.Match(matched);
//   if (code.ok()) code = adapter.Allocate(allocated);
//   if (code.ok()) code = session.BeginIdsStep(adapter.Batch(StepId(7), version, tokens));
//   CaptureCode submitted = session.SubmitIds(StepId(7), ids);
//   absl::Status kept = adapter.Checkpoint(request, blocks, 21);  // before they are released
//   if (code.ok()) code = adapter.Release(blocks);
//   std::vector<Snapshot> snapshots;  // any thread may read them
//   while (std::optional<Snapshot> snapshot = adapter.Take(request))
//     snapshots.push_back(*std::move(snapshot));
#ifndef WAYMARK_ADAPTERS_MEGATRON_MEGATRON_ADAPTER_H_
#define WAYMARK_ADAPTERS_MEGATRON_MEGATRON_ADAPTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/step_code.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/store/store.h"

namespace waymark {

// The tokens of a forward, as the engine's context has them: its own arrays, read as they are. The
// dummy block, and negative blocks, are padding: their rows have no KV.
struct MegatronTokens {
  const std::int64_t* token_to_block_idx = nullptr;                       // [active_tokens]
  const std::int32_t* token_to_local_position_within_kv_block = nullptr;  // [active_tokens]
  // Without the padding of graphs. The forward may write padded_active_token_count rows: that is
  // the `written_rows` of CaptureSession::BeginStep.
  std::size_t active_tokens = 0;
  // [active_tokens]: 0 = the token's request did not ask for routing; null = all asked.
  const std::uint8_t* asked = nullptr;
};

// The engine's thread, in every call: that of the store.
//
// Allocate, Match, Register, Release and Reset are on the step path: they allocate nothing, take no
// lock, never wait and do not throw. They return what RoutingStore::Report returns; index is that
// of the block. A refused call changes nothing.
class MegatronAdapter {
 public:
  // `store` is not owned and must outlive the adapter. `dummy_block`: the block to which the engine
  // sends tokens that have no KV. InvalidArgument unless it is a null block of the store.
  [[nodiscard]] static absl::StatusOr<MegatronAdapter> Create(RoutingStore* store,
                                                              BlockId dummy_block);
  MegatronAdapter(MegatronAdapter&&) = default;
  MegatronAdapter& operator=(MegatronAdapter&&) = default;

  // ---- the hooks of the block allocator, each when the engine has done it

  // Blocks were allocated, each for one user.
  [[nodiscard]] StepCode Allocate(std::span<const BlockId> blocks);
  // Blocks that a prefix match has found were pinned: each has one user more.
  [[nodiscard]] StepCode Match(std::span<const BlockId> blocks);
  // Each entry is one user less of its block; several owners may release a block in one call.
  [[nodiscard]] StepCode Release(std::span<const BlockId> blocks);
  // hashes[i] was registered for blocks[i], when its request was admitted: the steps from the next
  // one on fill the block, whose rows are protected after that one. A block may be registered again
  // with the same hash. `hashes`: [blocks.size()].
  [[nodiscard]] StepCode Register(std::span<const BlockId> blocks, const std::int64_t* hashes);
  // The allocator was reset: no request has blocks, and no prefix is found any more. Kept snapshots
  // stay.
  [[nodiscard]] StepCode Reset();

  // ---- the step

  // The batch of `step` with weights of this version, for BeginStep or BeginIdsStep of a session.
  // It points into this object, until the next call of Batch, and to the arrays of `tokens`.
  // Allocates nothing. What is wrong with the arrays the begin of the step says.
  [[nodiscard]] StepBatch Batch(StepId step, std::uint64_t version, const MegatronTokens& tokens);

  // ---- requests: `request` is a number that the engine chooses

  // Keeps a snapshot of rows [0, rows) of a request, whose KV is in `blocks` in this order; entries
  // behind those rows are not read. Call it before the blocks of a request are released, for
  // whatever reason. Where weights change while KV stays: for every request that runs then, and
  // after the first step of a request whose prefix match has found rows of older weights. O(pages),
  // copies no rows. Errors of RoutingStore::TakeSnapshot, which name the argument;
  // ResourceExhausted without memory. A refused call keeps nothing.
  [[nodiscard]] absl::Status Checkpoint(std::uint64_t request, std::span<const BlockId> blocks,
                                        std::int64_t rows);
  // Hands over the oldest snapshot that is kept of a request; nullopt: none is kept any more. The
  // routing of the request is the rows of all of them, joined in this order (blockstore/rows.h: the
  // first valid row wins): rows of an earlier life stay what its log-probabilities came from.
  [[nodiscard]] std::optional<Snapshot> Take(std::uint64_t request);
  // Releases the snapshots of a request that was aborted, without reading them.
  void Forget(std::uint64_t request);

  // The number of requests with kept snapshots.
  [[nodiscard]] std::size_t num_requests() const { return kept_.size(); }
  [[nodiscard]] RoutingStore& store() { return *store_; }

 private:
  explicit MegatronAdapter(RoutingStore* store)
      : store_(store),
        num_blocks_(store->options().num_blocks),
        block_tokens_(store->options().block_tokens) {}

  // Reports event(i) for each of `blocks`.
  template <class MakeEvent>
  StepCode Report(std::span<const BlockId> blocks, const MakeEvent& event);

  RoutingStore* store_;
  std::int32_t num_blocks_, block_tokens_;  // of the store
  PairRows pairs_;                          // of the last Batch
  // Oldest first, none empty. A map that is as it was when there is no memory.
  std::unordered_map<std::uint64_t, std::vector<Snapshot>> kept_;
};

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_MEGATRON_MEGATRON_ADAPTER_H_
