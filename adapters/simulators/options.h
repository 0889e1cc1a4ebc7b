// EngineOptions: which scheduler is simulated, its sizes, and what happens to it.
//
// Every feature is a probability, drawn each time it could happen, or a switch: 0 or 1. The names
// are the executable specification's (tests/conformance/model/).
#ifndef WAYMARK_ADAPTERS_SIMULATORS_OPTIONS_H_
#define WAYMARK_ADAPTERS_SIMULATORS_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "adapters/simulators/oracle.h"
#include "adapters/simulators/rows_by_key.h"
#include "blockstore/store/flight_sink.h"
#include "blockstore/store/store.h"

namespace waymark::sim {

// The features, X(name, meaning): probabilities, then switches.
#define WAYMARK_SIM_FEATURES(X)                                                                 \
  X(draft, "a decode step carries 1-3 drafts")                                                  \
  X(preempt, "a running request is preempted (by recompute)")                                   \
  X(drop, "a step is dropped on one stage: its ids are lost")                                   \
  X(cancel, "a begun step is cancelled: its forward does not run")                              \
  X(abort, "a running request is aborted, and its rows are not read")                           \
  X(reset, "the prefix cache is reset")                                                         \
  X(bump, "the weights change, the cache stays; rows of the old ones are read")                 \
  X(rollback, "a change of weights goes back to an earlier version")                            \
  X(fork, "a running request is forked")                                                        \
  X(partial, "an admission copies the leading rows of a cached block")                          \
  X(tier, "an evicted block goes to a tier without block ids (comes back by key)")              \
  X(swap, "an evicted block moves to a host block (comes back by id)")                          \
  X(external, "KV comes from another engine, whose rows are joined at the end")                 \
  X(by_key, "all stores publish into a tier, from which rows come by key; so do other engines") \
  X(lost_by_key, "rows that were lost are asked for by key, too")                               \
  X(tier_lost, "an object of the tier is not kept")                                             \
  X(tier_late, "an object of the tier is there from one of the next asks on")                   \
  X(tier_stale, "an object of the tier is one of the same key under other weights")             \
  X(tier_lying, "an object of the tier is another or damaged, or is not there though held")     \
  X(tier_failing, "a call of the tier fails")                                                   \
  X(unnamed, "weights have no name that other engines know")                                    \
  X(stream, "a running request is read while it runs")                                          \
  X(after, "a finished request is read some steps after its blocks were released")              \
  X(mute, "a request does not ask for routing")                                                 \
  X(silent, "a layer does not write one row of a step")                                         \
  X(rewind, "a request discards generated tokens")                                              \
  X(full_hit, "a prompt is cached up to its last token")                                        \
  X(pad, "a step has padding rows")                                                             \
  X(no_truncate, "rejected drafts are not announced")                                           \
  X(preempt_one, "a step preempts one running request (for big engines)")                       \
  X(drop_all, "as `drop`, on every stage of the step")                                          \
  X(no_memory, "a call to a store lacks memory (EngineOptions::fail_allocation)")               \
  X(pause, "a running request gets no tokens in a step, and keeps its blocks")                  \
  X(mid,                                                                                        \
    "a request finishes, is aborted, preempted or forked in the middle of the schedule: other " \
    "requests have got blocks, and still others will")                                          \
  X(late, "results are seen a step late (async scheduling)")                                    \
  X(completion_seal, "blocks are sealed when their step has completed")                         \
  X(blind_truncate, "rejections are announced even if the request left the block")              \
  X(guard, "recomputed shared rows go to the dummy block")                                      \
  X(ref_zero, "megatron: blocks are forgotten at reference zero")                               \
  X(clip, "prefix hits are clipped to what has routing")

struct Features {
#define WAYMARK_SIM_FEATURE(name, meaning) double name = 0;
  WAYMARK_SIM_FEATURES(WAYMARK_SIM_FEATURE)
#undef WAYMARK_SIM_FEATURE
};

// When the calls of a step reach the store. It never changes what the engine schedules, nor which
// rows are valid (unless steps are dropped, pages are few or the ring is small).
struct Timing {
  std::int32_t behind = 0;          // at most this many steps wait for their end, drawn each step
  bool shuffle = false;             // submits and landings come in any order
  bool land_at_once = false;        // kCaller: a submitted step lands at once
  std::int32_t truncate_delay = 0;  // rejections are announced up to this many steps later
  std::int32_t seal_delay = 0;      // so are completion seals
  Landing landing = Landing::kCaller;
  // kManual: after a call to a store, nothing is applied for up to this many calls; then one record
  // to all of them. Drawn per store.
  std::int32_t lag = 0;
  // > 0: events are reported when they happen, at most this many in a call, and not with their
  // step. Snapshots and queries are then in the middle of the events.
  std::int32_t report = 0;
  // With `report`, the probability that the events of a call are lost, and the engine tells its
  // stores so (LoseRows).
  double lost = 0;
  // > 0: readers are slow. Up to this many finished requests are not read yet, drawn each step; the
  // requests that finished last.
  std::int32_t slow = 0;
  std::uint64_t seed = 0;  // of the numbers drawn for the timing
};

struct EngineOptions {
  bool megatron =
      false;  // LIFO bag and registration at admission; else LRU queue, sealed as scheduled
  std::uint64_t seed = 0;
  Features features;
  Timing timing;

  std::int32_t block_tokens = 4;
  std::int32_t page_tokens = 4;
  std::int32_t blocks = 24;          // KV blocks; block id `blocks` is the engine's placeholder
  std::int32_t host_blocks = 64;     // blocks of the host tier; their ids follow the placeholder's
  std::int32_t tier_keys = 1 << 20;  // the most blocks in the tier without ids
  // Pages of each store. 0: more than it needs. -1: as many as its blocks, and enough spare pages
  // for all that snapshots and steps hold; then no page is short, unless keys outlive their blocks
  // (Features::tier).
  std::int32_t max_pages = 0;
  // With max_pages = -1; with fewer, late readers may hold all of them.
  static constexpr std::int32_t kEnoughSpare = 4096;
  std::int32_t spare_pages = kEnoughSpare;
  [[nodiscard]] bool few_spare() const { return max_pages < 0 && spare_pages < kEnoughSpare; }
  std::int32_t stages = 1;  // pipeline stages, each with its own store
  std::int32_t layers = 4, top_k = 2, experts = 16;

  std::int32_t max_running = 4;
  std::int32_t max_waiting =
      4;  // running and waiting requests are filled up to this (small engines)
  std::int32_t reserve_blocks = 8;  // small engines admit while this many blocks are free
  std::int32_t max_batched_tokens =
      0;                         // tokens per step; 0 = a small engine: chunks of 1-8 tokens, drawn
  std::int32_t spec_tokens = 0;  // > 0: this many drafts in every decode step; `draft` is ignored

  std::uint32_t max_steps_in_flight = 256;
  std::int32_t log_bytes = 0;  // StoreOptions::log_bytes; with a lag, a small log loses records
  bool audit = false;
  // Makes the StepFeed through which the engine calls a store; null: it calls the store. The store
  // outlives it.
  std::function<std::unique_ptr<StepFeed>(RoutingStore&)> feed;
  // Features::no_memory: makes the n-th allocation from now on fail; 0: none. The engine calls it
  // around calls to its stores. Null: the feature does nothing.
  std::function<void(std::uint64_t)> fail_allocation;
  // Features::by_key: makes what the engine gets rows by key from. Null: the feature does nothing.
  std::function<std::unique_ptr<RowsByKey>(const EngineOptions&, const RouteOracle&)> rows_by_key;
  std::vector<std::shared_ptr<FlightSink>> flights;  // one per stage; empty = none
  bool collect_digests = false;  // keep a digest of the valid rows of each request that finishes
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_OPTIONS_H_
