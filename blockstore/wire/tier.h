// Tier: rows by key, in a page source that engines share.
//
// An engine that gets KV from elsewhere (an offload tier, another engine, a prefix cache that
// outlived the rows) has no rows for it: no step of its own wrote them. The rows exist, in the
// engine that computed the KV. A tier has both halves:
//
//   writing   it is the seal sink of a store, and puts each complete page that is sealed with a
//             key into the page source, on a thread of its own ("wm-tier-put")
//   reading   Fill asks the page source for the rows that no step wrote, by the keys of their
//             blocks, on another ("wm-tier-get"); a third ("wm-tier-late") ends what is late
//
// Nothing here is on an engine's thread. What the page source does not have, or does not return in
// time, is missing (capacity), with the cause.
#ifndef WAYMARK_BLOCKSTORE_WIRE_TIER_H_
#define WAYMARK_BLOCKSTORE_WIRE_TIER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/log.h"
#include "blockstore/rows.h"
#include "blockstore/store/seal_sink.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/wire/digest_key.h"
#include "blockstore/wire/page_source.h"

namespace waymark::wire {

class TierCodec;

struct TierOptions {
  // Where the pages are. With one connection for each direction, reads do not wait for puts: `put`
  // may be another source of the same store; null: `get`. `get` is required; both are shared.
  std::shared_ptr<PageSource> get;
  std::shared_ptr<PageSource> put;
  // The namespace (TierCodec): what tells rows apart besides weights, tokens and shape.
  std::string space;
  // Names the pages and authenticates them, for those who have it. Empty: the page source is
  // trusted.
  DigestKey key;
  // The engine whose rows these are, the same on all its pipeline stages and no other engine's, so
  // that stages join pages of one pass only. "": a random one, for engines of one stage.
  std::string publisher;
  bool publish = true;  // false: reads only
  // False: Fill asks for nothing, and names the pages (Rows::names), so that a handle has the names
  // and a Fetcher with a tier asks.
  bool look_up = true;
  // Shorter keys are taken for hashes that are not cryptographic: their pages are not put, and not
  // asked for.
  std::uint32_t min_key_bytes = 16;
  // Also asks for rows that were lost here (capacity), which a step of this store computed: those
  // of another pass may differ from them in a few ids. Where a step of other weights wrote into
  // their block, they are not asked for.
  bool lost = false;
  // How long the rows of one Fill may wait. Pages that are absent are asked for again until then:
  // their publisher may be about to put them.
  std::chrono::nanoseconds timeout = std::chrono::milliseconds(250);
  // For tests, where time must decide nothing: ends a page after so many asks; 0: at the timeout.
  int most_asks = 0;
  // A source that was not in time, or failed, so many times in a row is not called for `skip`.
  int failures_to_skip = 3;
  std::chrono::nanoseconds skip = std::chrono::seconds(10);
  // Each put; sealed pages that wait for it (more are dropped), and the bytes that are put within
  // `time_to_live`, which is the page source's (0: bytes count for ever; max_bytes 0: no limit).
  std::chrono::nanoseconds put_timeout = std::chrono::seconds(5);
  std::size_t max_waiting = 4096;
  std::uint64_t max_bytes = 0;
  std::chrono::nanoseconds time_to_live = std::chrono::nanoseconds::zero();
  // CPUs that the threads may run on; empty: as StoreOptions::landing_cpus.
  std::vector<std::int32_t> cpus;
  // Receives, once each: that the source cannot be used, that weights have no name, that a call
  // failed; and each time that the source is skipped (warnings).
  LogCallback log = {};
};

// Every counter of a tier, once: X(name, what it counts).
#define WAYMARK_TIER_COUNTERS(X)                                                               \
  X(pages_sealed, "complete pages that were sealed with a key; again, if the option says so")  \
  X(pages_put, "of these: put into the page source")                                           \
  X(pages_held, "of these: it had them")                                                       \
  X(pages_dropped, "of these: max_waiting were waiting, max_bytes were put, or it is skipped") \
  X(pages_failed, "of these: their put failed")                                                \
  X(bytes_put, "bytes of the pages that were put")                                             \
  X(fills, "reads that asked for rows by key")                                                 \
  X(pages_asked, "pages that they asked for")                                                  \
  X(pages_found, "of these: had their rows")                                                   \
  X(pages_absent, "of these: were not there until the timeout")                                \
  X(pages_damaged, "of these: were not as they were published")                                \
  X(pages_refused, "of these: were entries of other pages")                                    \
  X(pages_late, "of these: the source did not answer in time")                                 \
  X(pages_unreachable, "of these: the source could not be reached, or failed")                 \
  X(pages_skipped, "of these: the source was not called")                                      \
  X(pages_unnamed, "of these: not there, and of weights without a name")                       \
  X(rows_filled, "rows that were missing and came from the page source")                       \
  X(skips, "times that the source was skipped for some time")

// Counters since the tier was made.
struct TierStats {
#define WAYMARK_COUNTER(name, meaning) std::uint64_t name = 0;
  WAYMARK_TIER_COUNTERS(WAYMARK_COUNTER)
#undef WAYMARK_COUNTER
};

// What the KV of a sequence is found by.
struct TierKeys {
  // Of rows that were read from `snapshot`; `keys`: of its sequence's first blocks; `present`: the
  // version for Snapshot::VersionOf. REQUIRES: the snapshot is ready. Throws std::bad_alloc.
  [[nodiscard]] static TierKeys Of(const Snapshot& snapshot, std::vector<BlockKey> keys,
                                   std::uint64_t present, std::int32_t block_tokens);

  std::vector<BlockKey> keys;  // of its first blocks; an empty key is not asked for
  // [keys]: the version of the weights in force when the block was bound or hit, as the store
  // counts them; nullopt: not known, and not asked for.
  std::vector<std::optional<std::uint64_t>> versions;
  // [keys]: rows that were lost are of that version, too.
  std::vector<bool> lost;
  std::int32_t block_tokens = 0;  // of a block
};

// All calls may come from any thread. None waits for the page source.
class Tier final : public SealSink {
 public:
  // The tier of stores with `shape`. Starts the threads, that which puts only if it publishes.
  // InvalidArgument naming the option, the rule and the value; ResourceExhausted if there is no
  // memory or no thread. Does not throw.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Tier>> Create(const RoutingShape& shape,
                                                                    const TierOptions& options);
  // Ends every Fill with what has come. Puts what waits, and lets a call of the source end, until a
  // second after the option's timeout for each; a thread that the source does not let go by then
  // ends by itself. In a forked child it does nothing.
  ~Tier() override;

  // The weights of `version` are those that every engine and trainer knows as `name`, e.g. a
  // checkpoint's path with its step, and with those of the adapters (LoRA) in use. Before the
  // first step of the version. Versions without a name have one that no other process has: their
  // pages are found by this one alone. FailedPrecondition if the version has another name, and in a
  // forked child; ResourceExhausted if there is no memory.
  [[nodiscard]] absl::Status NameWeights(std::uint64_t version, std::string_view name);

  void OnSealed(const SealedPage& page) noexcept override;

  using Done = std::function<void(std::shared_ptr<const Rows>)>;
  // Names the pages with rows that are missing because no step wrote them, in blocks with a key,
  // and resolves the names, if options.look_up is set. `done`: as Resolve.
  void Fill(std::shared_ptr<Rows> rows, const TierKeys& keys, Done done);
  // Asks for the pages of rows->names, and calls `done` with the rows, without names, when all have
  // come, or at `deadline` or after options.timeout, whichever is earlier: on a thread of the tier,
  // or here if there is nothing to ask for. Rows that come are valid (by key), of the version that
  // their name has; others are missing (capacity), with the cause. `rows`: the caller must not use
  // them until then. They have all layers of the shape of `codec`, or some of them, from
  // `first_layer` on. `done` must not throw.
  void Resolve(std::shared_ptr<Rows> rows, std::shared_ptr<const TierCodec> codec,
               std::int32_t first_layer, Deadline deadline, Done done);

  // The counters. Zeros in a forked child.
  [[nodiscard]] TierStats GetStats() const;
  // For tests: waits until every sealed page so far was put, or was not. False after `timeout`.
  [[nodiscard]] bool WaitPut(std::chrono::nanoseconds timeout) const;

 private:
  struct Impl;
  explicit Tier(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // the threads have it, too
};

}  // namespace waymark::wire

#endif  // WAYMARK_BLOCKSTORE_WIRE_TIER_H_
