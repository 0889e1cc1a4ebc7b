// RoutingStore: the routing rows of every KV block of an engine, and the rules that keep them
// right.
//
// One object per rank that stores rows. The engine tells it what happens to its KV blocks and where
// each step's rows go (BeginStep), hands over the ids when they exist (Submit), and takes a
// Snapshot of a finished request's blocks. Steps order everything; arrival orders nothing. The
// rules are in docs/architecture.md, one picture each.
//
// Threads: the *engine's thread* (one at a time) calls BeginStep, Submit, Drop, Cancel,
// TakeSnapshot and CoveredPrefix. One *landing thread*, owned by the store (or the caller, through
// LandOne), copies rows into pages. Snapshots are read on any thread. GetStats, TakeFindings: any
// thread.
//
// On the step path (the first four) nothing allocates after warm-up, waits for a device, copies
// rows or throws; one short lock is taken.
//
// Example, where `ids` is a RowSource with the ids of two rows:
//
//   RoutingShape shape = {.num_layers = 58, .top_k = 8, .num_experts = 256, .page_tokens = 16};
//   auto store = RoutingStore::Create({.shape = shape, .num_blocks = 4096});
//   if (!store.ok()) return store.status();
//
//   // When step 7 is scheduled: block 3 is new, and two rows of KV go to its first two slots.
//   const Event events[] = {Event::Bind(BlockId(3))};
//   const std::int64_t slots[] = {3 * 16 + 0, 3 * 16 + 1};
//   StepBatch batch = {.step = 7, .version = 1};
//   batch.events = events, batch.num_events = 1;
//   batch.slots = slots, batch.num_slots = 2;
//   StepCode code = (*store)->BeginStep(batch);
//
//   // When the ids exist. `ids` must live until its Done() is called.
//   if (code.ok()) code = (*store)->Submit(StepId(7), &ids);
//   if (!code.ok()) return code.ToStatus();
//
//   // When the request is finished, before its blocks are freed.
//   const BlockId blocks[] = {BlockId(3)};
//   auto snapshot = (*store)->TakeSnapshot(blocks, 0, 2);
//   if (!snapshot.ok()) return snapshot.status();
//
//   // On any thread: rows->ids is [2, 58, 8] uint8, rows->infos one RowInfo per row.
//   absl::Status landed = snapshot->Wait(std::chrono::seconds(1));
//   if (!landed.ok()) return landed;
//   auto rows = snapshot->ReadRows();
#ifndef WAYMARK_BLOCKSTORE_STORE_STORE_H_
#define WAYMARK_BLOCKSTORE_STORE_STORE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/log.h"
#include "blockstore/shape.h"
#include "blockstore/step_code.h"
#include "blockstore/store/flight_sink.h"
#include "blockstore/store/row_source.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/store/stats.h"

namespace waymark {

// Who lands submitted steps.
enum class Landing : std::uint8_t {
  kThread,  // a thread of the store's own
  kCaller,  // the caller, through LandOne(): single-threaded engines, deterministic tests
};

struct StoreOptions {
  RoutingShape shape;
  // Block ids are in [0, num_blocks), those of other tiers (offload) included. 1 ... 2^31 / parts.
  std::int32_t num_blocks = 0;
  // Tokens of one KV block: a multiple of shape.page_tokens; 0 = one page a block.
  std::int32_t block_tokens = 0;
  // Pages of memory. 0 = one for every page of every block.
  std::uint32_t num_pages = 0;
  // The engine's placeholder ids (dummy block, block 0 of some engines): null blocks.
  std::vector<BlockId> null_blocks;
  // Begun steps that have not ended; one more is dropped. 1 ... 4096.
  std::uint32_t max_steps_in_flight = 16;
  // Rows of one step, padding included. A step of more is refused.
  std::uint32_t max_step_rows = 8192;
  // Steps whose slots are known on the device only may come (StepBatch::device_slots). Takes 12
  // bytes more for each row of each step in flight.
  bool device_slots = false;
  Landing landing = Landing::kThread;
  // CPUs that the landing thread ("wm-landing") may run on; empty = it is not pinned.
  std::vector<std::int32_t> landing_cpus;
  // Compare ignored writes with what is kept; void a page whose mean agreement is under the
  // threshold.
  bool audit = true;
  double audit_threshold = 0.5;  // in [0, 1]; docs/architecture.md says how to calibrate it
  // Count the experts of landed rows per version (Stats::experts). Costs about 1 ns an id.
  bool count_experts = false;
  // Seed of the key index's hash; 0 = drawn at random.
  std::uint64_t key_seed = 0;
  // Records everything; must outlive the store and its snapshots. Null = off, at no cost.
  FlightSink* flight = nullptr;
  // Hears each finding of the audit that voided rows (AuditFinding::ToString), from whoever lands.
  LogCallback log = {};
};

class RoutingStore {
 public:
  // InvalidArgument naming field, rule and value; ResourceExhausted when memory cannot be reserved.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RoutingStore>> Create(
      const StoreOptions& options);
  // Lands what has been submitted (from sources that must still be there) and drops the rest in
  // flight. Snapshots taken before stay readable.
  ~RoutingStore();
  RoutingStore(const RoutingStore&) = delete;
  RoutingStore& operator=(const RoutingStore&) = delete;

  // ---- the step path: the engine's thread ----

  // Applies the batch's events in their order, claims its rows, then applies its own seals. On an
  // invalid batch nothing is done. When there is no room for a step in flight, the step is dropped
  // at once and StepCode::dropped() is true. O(events + rows).
  [[nodiscard]] StepCode BeginStep(const StepBatch& batch);
  // The ids of a begun step exist and stay readable in `source` until source->Done(). `source` may
  // be null for a step without rows. Steps may be submitted in any order. On failure (step not in
  // flight) source->Done() is called before the return.
  [[nodiscard]] StepCode Submit(StepId step, RowSource* source);
  // The ids of a begun step will not come: its rows are missing (capacity).
  [[nodiscard]] StepCode Drop(StepId step);
  // The forward of a begun step did not run: its claims are revoked (never written). Comes before
  // the step that runs the same rows again is begun.
  [[nodiscard]] StepCode Cancel(StepId step);

  // ---- reading: the engine's thread ----

  // Pins rows [first, last) of the sequence whose KV lies in `blocks` (block i holds tokens
  // [i * block_tokens, (i + 1) * block_tokens)). Null blocks read as never written. O(pages), no
  // copy, no wait. InvalidArgument on a range that is negative, reversed or longer than the blocks,
  // and on block ids out of range.
  [[nodiscard]] absl::StatusOr<Snapshot> TakeSnapshot(std::span<const BlockId> blocks,
                                                      std::int64_t first, std::int64_t last);
  // Leading rows of [0, rows) that are valid or pending: what a scheduler may take as a prefix hit
  // with routing. Rows beyond the blocks, and of unknown blocks, do not count. O(answer).
  [[nodiscard]] std::int64_t CoveredPrefix(std::span<const BlockId> blocks,
                                           std::int64_t rows) const;

  // ---- landing ----

  // Landing::kCaller only: lands the submitted step that was submitted first; false when there is
  // none.
  bool LandOne();
  // Landing::kCaller only: lands exactly this step, if it has been submitted.
  bool Land(StepId step);
  // Waits until every step begun so far has ended; the last source may hear Done() a moment later.
  // DeadlineExceeded after `timeout`.
  [[nodiscard]] absl::Status WaitIdle(std::chrono::nanoseconds timeout);

  // ---- what it knows ----

  [[nodiscard]] Stats GetStats() const;
  // What the audit found since the last call, oldest first (the newest 256 are kept).
  [[nodiscard]] std::vector<AuditFinding> TakeFindings();
  [[nodiscard]] const StoreOptions& options() const;
  // The last step begun; 0 before the first. Engine's thread.
  [[nodiscard]] StepId last_step() const;

  // Internal state, for the flight recorder and tests of this folder.
  class Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  explicit RoutingStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Follows one sequence: each Next() is a snapshot of the rows that are new since the last one.
class Cursor {
 public:
  explicit Cursor(std::int64_t first = 0) : next_(first) {}
  // Pins rows [next(), last) and moves on to `last`; errors as TakeSnapshot, and then it stays.
  // Engine's thread.
  [[nodiscard]] absl::StatusOr<Snapshot> Next(RoutingStore& store, std::span<const BlockId> blocks,
                                              std::int64_t last);
  [[nodiscard]] std::int64_t next() const { return next_; }

 private:
  std::int64_t next_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_H_
