// Request: one sequence in a simulated engine; Arrivals: the interface that produces requests.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_REQUEST_H_
#define WAYMARK_ADAPTERS_SIMULATORS_REQUEST_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "adapters/simulators/cells.h"
#include "adapters/simulators/hash.h"
#include "adapters/simulators/options.h"
#include "adapters/simulators/rows_by_key.h"
#include "blockstore/rows.h"
#include "blockstore/store/snapshot.h"

namespace waymark::sim {

// One read of a request's rows: one snapshot per stage, or rows that were read (or sent) already.
struct Read {
  std::vector<Snapshot> stages;
  std::vector<Rows> rows;      // one element, with all layers, once read; else empty
  bool waits = false;          // the snapshots are taken after the release, and were not yet
  std::vector<bool> released;  // of those: the positions whose block is not the request's any more
  bool lost = false;           // a snapshot found no room in the log: all rows are missing
  std::shared_ptr<const AskedByKey> by_key;  // null: not asked for by key
  std::int64_t limit = 0;  // rows at positions >= limit were discarded by a rewind

  [[nodiscard]] bool Ready() const {
    return !waits && std::all_of(stages.begin(), stages.end(),
                                 [](const Snapshot& snapshot) { return snapshot.Ready(); });
  }
};
// The reads of a request, to be joined. Shared, because a rewind must limit reads that a waiting
// ReadJob has, too.
using Reads = std::vector<std::shared_ptr<Read>>;

struct Request {
  std::uint32_t id = 0;
  std::vector<std::uint64_t> stream;  // its tokens, those that it will generate included
  std::vector<PrefixHash> prefix;     // prefix[n]: hash of the first n tokens
  std::int64_t known = 0;             // tokens that exist: prompt and generated
  std::int64_t goal = 0;              // the request is done when this many tokens exist
  bool mute = false;                  // did not ask for routing
  std::uint32_t done = 0;             // step that reached the goal; 0 = not yet
  Reads reads;                        // what was read so far
  SeenCells seen;                     // what it attended to so far

  // Its present life in the KV pool, from admission to preemption or end.
  std::int64_t computed = 0;         // leading tokens whose KV is in the pool
  std::vector<std::int32_t> blocks;  // its blocks, in order
  std::int64_t sealed = 0;           // leading blocks that are registered
  std::vector<std::int64_t> dirty;   // indices of its blocks whose rows were overwritten
  std::int64_t confirmed = -1;       // tokens that the host knows to be computed; -1: none yet
  bool unseen = true;                // it has not attended to anything yet
  bool running = false;

  // Resets the life in the pool: no KV, not running.
  void Fresh();
  // Recomputes `prefix` from token `first` on.
  void HashFrom(std::int64_t first);
};
using RequestPtr = std::shared_ptr<Request>;

// Produces requests.
class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // Sets stream, known (the length of the prompt) and goal of the next request; returns false if
  // there are no more. The stream must have `spare` tokens beyond the goal.
  virtual bool Next(Rng& rng, std::int64_t spare, Request& request) = 0;
};

// Endless requests with short prompts, many of which begin with one of two common prefixes.
class RandomArrivals final : public Arrivals {
 public:
  RandomArrivals(std::uint64_t seed, double full_hit, double mute, std::int32_t block_tokens);
  bool Next(Rng& rng, std::int64_t spare, Request& request) override;

 private:
  static constexpr std::int64_t kWords = 50;
  std::vector<std::uint64_t> beginnings_[2];
  double full_hit_;
  double mute_;
  std::int64_t block_tokens_;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_REQUEST_H_
