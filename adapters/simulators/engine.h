// Engine: simulates the schedulers of two inference engines, which drive stores through the public
// interface.
//
// vLLM-like: LRU free queue with lazy hash eviction, hits on blocks registered in the same step,
// seals when scheduled (or when completed), chunked prefill, preemption by recompute, drafts, async
// scheduling (results a step late). Megatron-like: LIFO stack of free blocks, prompt blocks
// registered at admission (before their chunks run), a fully cached prompt recomputes its last
// shared block, a dummy block, eviction of the LRU leaf or at reference zero. The engine schedules,
// the oracle computes what each row must be, the checker compares. Nothing here uses the inside of
// the store.
//
// Not thread safe. The same options give the same schedule, whatever EngineOptions::timing is.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_ENGINE_H_
#define WAYMARK_ADAPTERS_SIMULATORS_ENGINE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "adapters/pool/block_pool.h"
#include "adapters/simulators/cells.h"
#include "adapters/simulators/checker.h"
#include "adapters/simulators/options.h"
#include "adapters/simulators/oracle.h"
#include "adapters/simulators/request.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/store.h"

namespace waymark::sim {

// The options of the store of stage `stage`.
[[nodiscard]] StoreOptions StoreOptionsOf(const EngineOptions& options, std::int32_t stage);

// What the engine has done so far.
struct EngineCounts {
  std::int64_t steps = 0;              // steps scheduled
  std::int64_t steps_dropped = 0;      // steps dropped by the scenario or by the store
  std::int64_t prefix_hit_tokens = 0;  // tokens whose KV was found in the prefix cache
  std::int64_t computed_tokens = 0;    // rows that ran through a forward, drafts included
  std::int64_t preemptions = 0;        // requests preempted
  std::int64_t evictions = 0;          // registered blocks whose hash was forgotten for reuse
  std::int64_t requests_skipped = 0;   // requests that could never fit the pool
};

class Engine {
 public:
  // Makes one store per stage. With `arrivals` null the requests are RandomArrivals. Errors of
  // RoutingStore::Create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Engine>> Create(
      const EngineOptions& options, std::unique_ptr<Arrivals> arrivals = nullptr);
  // When it is destroyed, steps may be in flight and reads may be waiting: they are not ended.

  // Schedules and runs one step.
  void Step();
  // Calls Step() `steps` times.
  void Run(std::int64_t steps);
  // Ends and lands all steps in flight, and checks all waiting reads.
  void Finish();
  // Whether no request is running or waiting, and no more arrive.
  [[nodiscard]] bool Idle() const;

  [[nodiscard]] const CheckCounts& checks() const { return checker_->counts(); }
  [[nodiscard]] const EngineCounts& counts() const { return counts_; }
  // The statistics of the store of `stage`.
  [[nodiscard]] Stats StoreStats(std::int32_t stage) const;
  // Whether any store has lost rows because pages were short, its stamps wrapped or its log was
  // full.
  [[nodiscard]] bool PagesShort() const;

 private:
  // The tokens of one request in the step that is being scheduled.
  struct Work {
    RequestPtr request;
    std::int64_t tokens = 0;  // drafts included
    std::int64_t drafts = 0;
    std::int64_t right_drafts = 0;  // leading drafts that equal the request's own next tokens
    absl::InlinedVector<std::uint64_t, 4> draft_tokens;
    bool fresh = false;  // admitted in this step
  };
  // A row of the forward: its pass, its prefix, and the prefix at the start of its block.
  struct RowPlan {
    Pass pass;
    PrefixHash prefix, block_start;
  };
  // A seal, announced in step `due`.
  struct SealPlan {
    std::int32_t block;
    PrefixHash key;
    PrefixHash start;  // the prefix at the start of the block
    std::uint32_t step, due;
  };
  // A truncation after rejected drafts, announced in step `due`.
  struct TruncatePlan {
    std::int32_t block;
    std::int32_t row;
    std::uint32_t step, due;
    std::weak_ptr<Request> request;
  };
  // How a begun step is to end in the store of one stage: submitted with its rows; dropped, if it
  // has `run`; or cancelled.
  struct Ending {
    std::size_t stage;
    StepId step;
    OracleRows* step_rows;
    bool run = true;
  };
  // A running request that leaves in the middle of the schedule.
  struct Leaving {
    enum class How { kFinish, kAbort, kPreempt } how;
    RequestPtr request;
  };

  Engine(const EngineOptions& options, std::unique_ptr<Arrivals> arrivals);

  // engine.cc: the phases of a step.
  // Announces the truncations and seals that are due.
  void AnnounceResults();
  // Finishes requests that are done, and draws aborts, preemptions, new weights and cache resets.
  void Disturb();
  // Lets a request finish, be aborted or be preempted: now, or later in this schedule.
  void Leave(const RequestPtr& r, Leaving::How how);
  void LeaveNow(const Leaving& leaving);
  // The same for requests that are to leave later in this schedule: some of them, or all.
  void LeaveSome(bool all);
  // Whether `r` was to leave later in this schedule; it has then left.
  bool LeaveEarly(const RequestPtr& r);
  [[nodiscard]] bool IsLeaving(const RequestPtr& r) const;
  // Draws reads of running requests, and takes their snapshots.
  void StartStreams();
  // Plans the step's tokens of running requests. A request that gets no block preempts the last
  // one.
  void ScheduleRunning();
  // Admits waiting requests: takes their prefix hits, and plans their first tokens.
  void ScheduleWaiting();
  // Draws forks of running requests, which share full blocks and copy the last one.
  void Forks();
  // Discards the last few generated tokens of a request.
  void Rewind(Request& r);
  // The next request; null if there is none or it can never fit the pool.
  RequestPtr Arrive();
  void FillQueue();
  // How many steps late the host sees results.
  [[nodiscard]] std::int64_t Lag() const { return options_.features.late ? 1 : 0; }
  // Whether a step has a budget of tokens, as in a real engine.
  [[nodiscard]] bool Big() const { return options_.max_batched_tokens > 0; }

  // engine_blocks.cc: blocks, hits, restores, snapshots.
  // Allocates a block and announces its Bind; -1 if there is none.
  std::int32_t Alloc(const BlockKey* key = nullptr);
  // Forgets a block's hash; a registered block may first be saved to a tier. `push`: and frees it.
  void Evict(std::int32_t block, bool push);
  [[nodiscard]] static std::vector<BlockId> IdsOf(const Request& r);
  // Saves a block to the tier without block ids, or moves it to a host block (false: none is free).
  void StoreInTier(std::int32_t block);
  bool SwapOut(std::int32_t block);
  // Adds a user to a block, and announces it.
  void Retain(std::int32_t block);
  // Releases all blocks of a request, the last one first.
  void ReleaseBlocks(Request& r);
  // Allocates blocks until `tokens` tokens have room; false if the pool has no more.
  bool Grow(Request& r, std::int64_t tokens);
  // Registers block `index` of a request in the prefix cache, from step `ready` on. `now`:
  // announces the seal as an event of this step, else with the seals of the step.
  void Register(Request& r, std::int64_t index, std::uint32_t ready, bool now);
  // Sets `hits` to the cached blocks of a request's prefix; false if it must wait for one of them.
  bool FindHits(const Request& r, std::vector<std::int32_t>& hits);
  // Whether the pool has room for the rest of the request's known tokens.
  [[nodiscard]] bool Fits(const Request& r, const std::vector<std::int32_t>& hits) const;
  void TakeHits(Request& r, const std::vector<std::int32_t>& hits);
  // Continues the prefix of a request with blocks from the tiers or from another engine.
  void Restore(Request& r);
  std::int32_t SwapIn(const PrefixHash& key);
  std::int32_t RestoreFromTier(const PrefixHash& key);
  std::int32_t ReceiveFromOutside(Request& r);
  // Continues the prefix of a request with the leading rows of a cached block, by a partial copy.
  void CopyPart(Request& r);
  // The rows of the block at position `base` that another engine computed, as a read.
  [[nodiscard]] std::shared_ptr<Read> RemoteRead(const Request& r, std::int64_t base) const;
  // What rows [0, rows) of a request in these blocks are asked for with; null without a tier.
  [[nodiscard]] std::shared_ptr<const AskedByKey> AskByKey(std::span<const BlockId> blocks,
                                                           std::span<const PrefixHash> prefix,
                                                           std::int64_t known, std::int64_t rows);
  // Takes a snapshot of rows [0, rows) of a request in every store.
  [[nodiscard]] std::shared_ptr<Read> TakeRead(Request& r, std::int64_t rows);
  // The same, some steps from now: its blocks are released before.
  [[nodiscard]] std::shared_ptr<Read> TakeReadLater(const Request& r, std::int64_t rows);
  void TakeLateReads(bool all);
  // What both do in every store.
  void TakeSnapshots(Read& read, std::span<const BlockId> blocks, const SnapshotOwner& owner);
  // Adds the snapshot of a stage; without one, the rows of the read are lost.
  void AddTaken(Read& read, absl::StatusOr<Snapshot> snapshot, bool may_lose, const char* call);
  // Takes a snapshot of a request, releases its blocks, and puts it back into the queue.
  void Preempt(const RequestPtr& r);
  // Takes the last snapshot of a request, releases its blocks, and queues its check.
  void FinishRequest(const RequestPtr& r);
  void StopRunning(const RequestPtr& r);
  [[nodiscard]] KvCell& Cell(std::int32_t block, std::int64_t offset) {
    return kv_[static_cast<std::size_t>(block) * static_cast<std::size_t>(bs_) +
               static_cast<std::size_t>(offset)];
  }
  // What is known of the contents of block `from`, which are now in `to`, too.
  void CopyMarks(std::int32_t from, std::int32_t to) {
    not_vouched_[static_cast<std::size_t>(to)] = not_vouched_[static_cast<std::size_t>(from)];
  }
  // Whether every row of a block has KV.
  [[nodiscard]] bool Complete(std::int32_t block);

  // engine_forward.cc: the forward pass, the only code that writes KV.
  void RunForward();
  // Sets the slots and passes of the step's rows, and writes their KV unless the forward `failed`.
  void PlanRows(bool failed);
  void PlanWorkRows(const Work& work, bool failed);
  // Adds the excuse for a sealed page with rows of other weights, which is not indexed.
  void ExcuseSeal(const SealPlan& seal);
  // Adds the excuses for the rows of the step that is being scheduled, which was dropped. `failed`:
  // it does not run, but the store had dropped it before it knew.
  void ExcuseStep(Excuse why, bool failed = false);
  // Adds them for what is in the slot, which may be one that did not ask.
  void ExcuseKv(std::int64_t coded_slot, const PrefixHash& block_start, Excuse why);
  // Megatron-like: the tokens of this step, as its context has them.
  [[nodiscard]] PairRows TakeTokens();
  // Begins the step in every store, and draws how it ends in each.
  void BeginAndEnd(bool failed);
  // Takes the plan back after a forward that did not run.
  void Unschedule();
  // Records the cells that a request attends to in this step.
  void Attend(const Work& work);
  // The same of the cells that others have overwritten in its blocks.
  void AttendDirty(Request& r);
  void AttendTo(Request& r, std::int64_t position);
  // Moves a request on by the tokens of this step, and announces the rejection of drafts.
  void Advance(const Work& work);
  // Registers the blocks of a request that this step fills (vLLM-like).
  void SealFull(Request& r, std::int64_t tokens);

  // engine_feed.cc: ends, landings and reads, in an order that the timing's seed draws.
  void Feed();
  void End(const Ending& ending);
  // Adds an event to the batch of this step, or reports it (Timing::report).
  void Announce(const Event& event);
  // Timing::report: reports the events announced so far.
  void ReportEvents();
  // Opens the schedule of this step, where its events need it or by the draw.
  void OpenSchedule();
  // The step of a seal of this step: its number, or 0.
  StepId OwnStep();
  // Whether blocks are sealed when they are registered, and not when all of the step is known.
  [[nodiscard]] bool SealsAtOnce() const {
    return options_.megatron && options_.timing.report > 0 && !options_.features.completion_seal;
  }
  // Counts the result of a call; a failed one, other than `expected`, is a failure.
  void Expect(const StepCode& code, const char* call);
  // Whether records may fail to reach a store. A landing thread that gets no core for long lets its
  // log become full.
  [[nodiscard]] bool MayLoseRecords() const {
    return options_.log_bytes > 0 || options_.features.no_memory > 0 ||
           options_.timing.landing == Landing::kThread;
  }
  // Makes a call to a store, in which an allocation may fail. Not for Landing::kThread: the thread
  // of the simulator must not fail in its own allocations.
  template <class Call>
  auto Failing(Call call) {
    const double chance = options_.features.no_memory;
    const bool fails = chance > 0 && options_.fail_allocation && worker_.Chance(chance);
    if (fails) options_.fail_allocation(1 + static_cast<std::uint64_t>(worker_.Below(3)));
    auto result = call();
    if (fails) options_.fail_allocation(0);
    return result;
  }
  // Whether the store has run out of memory, as Features::no_memory allows.
  [[nodiscard]] bool StoreFailed(std::size_t stage) const {
    return options_.features.no_memory > 0 && !stores_[stage]->status().ok();
  }
  // Landing::kManual: applies some records, after a call to the store of `stage`.
  void ApplySome(std::size_t stage);
  // Landing::kThread: waits until the landing thread is at most a few steps behind.
  void WaitForLanding();
  // Without a landing thread: lands some of the submitted steps.
  void LandSome();
  // Checks the reads whose snapshots are readable. `all`: also streams that are not due.
  void CheckReads(bool all);

  const EngineOptions options_;
  const std::int64_t bs_;
  Rng rng_;     // what is scheduled
  Rng timing_;  // when and how the scheduler reports it
  Rng worker_;  // what the worker does: ends, landings, applied records, lost events
  std::unique_ptr<Arrivals> arrivals_;
  bool more_arrivals_ = true;
  RouteOracle oracle_;
  ExcuseBook excuses_;
  OracleRowsPool step_rows_;           // outlives the stores
  std::unique_ptr<RowsByKey> by_key_;  // null: no rows come by key; outlives the stores
  std::vector<std::unique_ptr<RoutingStore>> stores_;
  std::vector<std::unique_ptr<StepFeed>> feeds_;  // one per store
  std::unique_ptr<Checker> checker_;
  EngineCounts counts_;

  BlockPool pool_;
  std::vector<KvCell> kv_;
  // For each block, host blocks included: its KV came back by key, and was not of the version at
  // that time.
  std::vector<bool> not_vouched_;
  absl::flat_hash_map<PrefixHash, std::vector<KvCell>> tier_;  // blocks without block ids
  std::deque<PrefixHash> tier_order_;
  absl::flat_hash_map<PrefixHash, std::int32_t> swapped_;
  std::deque<PrefixHash> swap_order_;
  std::vector<std::int32_t> free_hosts_;

  std::uint32_t now_ = 0;
  std::uint32_t begun_ = 0;             // the last step begun
  std::uint32_t opened_ = 0;            // the last schedule opened
  std::uint32_t reported_version_ = 0;  // the version that the stores know
  std::uint32_t version_ = 1;
  std::uint32_t newest_version_ = 1;
  std::uint32_t last_request_ = 0;
  std::vector<RequestPtr> running_;
  std::deque<RequestPtr> waiting_;
  std::vector<Leaving> leaving_;
  std::vector<TruncatePlan> truncations_;
  std::vector<SealPlan> late_seals_;
  std::vector<Event> next_events_;

  // The step that is being scheduled.
  std::vector<Event> events_;
  std::vector<Work> plan_;
  std::vector<RequestPtr> paused_;
  std::vector<SealPlan> seals_;
  // Of blocks whose KV came from elsewhere since the last forward that ran.
  std::vector<SealPlan> loaded_;
  // The cells of blocks that were loaded by key since the last forward that ran. If weights change
  // before the next one, the blocks lose their rows.
  std::vector<KvCell> found_;
  std::int64_t budget_ = 0;

  // Of a Megatron-like engine.
  std::vector<std::int64_t> token_blocks_;
  std::vector<std::int32_t> token_positions_;
  std::vector<std::uint8_t> token_asked_;

  std::vector<std::int64_t> slots_;
  std::vector<RowPlan> rows_;
  std::vector<PrefixHash> row_prefixes_;

  std::vector<Ending> endings_;
  std::vector<std::int64_t> calls_without_apply_;  // that are left, per stage
  bool records_lost_ = false;                      // some did not reach a store
  std::size_t report_at_ = 1;                      // events until the next report
  std::vector<ReadJob> reads_;
  // Reads of finished requests whose blocks were released (Features::after).
  struct LateRead {
    std::uint32_t due = 0;  // the step in which they are taken
    std::uint32_t last_step = 0;
    std::vector<BlockId> blocks;
    std::vector<bool> shared;  // the block had another user, too
    std::vector<BlockKey> keys;
    std::vector<PrefixHash> prefix;
    std::int64_t known = 0;
    std::shared_ptr<Read> read;
  };
  std::vector<LateRead> late_reads_;
  std::uint32_t reset_in_ = 0;  // the last step with a reset
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_ENGINE_H_
