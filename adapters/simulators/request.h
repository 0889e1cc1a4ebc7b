// Request: one sequence on its way through a simulated engine; Arrivals: where requests come from.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_REQUEST_H_
#define WAYMARK_ADAPTERS_SIMULATORS_REQUEST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "adapters/simulators/cells.h"
#include "adapters/simulators/hash.h"
#include "adapters/simulators/options.h"
#include "blockstore/rows.h"
#include "blockstore/store/snapshot.h"

namespace waymark::sim {

// One read of a request's rows: a snapshot a stage, or rows that have been read (or sent) before.
struct Part {
  std::vector<Snapshot> stages;
  std::vector<Rows> rows;  // of all layers; one when it has been read, else none
  std::int64_t limit = 0;  // rows at positions >= limit do not count any more
};
// A stream of a request shares its parts with nobody, but a read in waiting shares them with a
// rewind.
using Parts = std::vector<std::shared_ptr<Part>>;

struct Request {
  std::uint32_t id = 0;
  std::vector<std::uint64_t> stream;  // its tokens, those that it will generate included
  std::vector<PrefixHash> prefix;     // prefix[n]: of the first n tokens
  std::int64_t known = 0;             // tokens that exist: prompt and generated
  std::int64_t goal = 0;              // it is done when so many are known
  bool mute = false;                  // did not ask for routing
  std::uint32_t done = 0;             // step that reached the goal; 0 = not yet
  Parts parts;
  SeenCells seen;

  // Its present life in the KV pool.
  std::int64_t computed = 0;  // tokens whose KV is there
  std::vector<std::int32_t> blocks;
  std::int64_t sealed = 0;          // leading blocks that are registered
  std::vector<std::int64_t> dirty;  // indices of its blocks that somebody wrote into
  std::int64_t confirmed = -1;      // tokens that the host knows to be computed; -1: none yet
  bool unseen = true;               // it has not attended to anything yet
  bool running = false;

  // Without KV: waiting.
  void Fresh();
  // Recomputes `prefix` from token `first` on.
  void HashFrom(std::int64_t first);
};
using RequestPtr = std::shared_ptr<Request>;

class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // Fills stream, known (the prompt) and goal of the next request; false when no more come. The
  // stream must go on for `spare` tokens behind the goal.
  virtual bool Next(Rng& rng, std::int64_t spare, Request& request) = 0;
};

// Never ends: short prompts, many of which share one of two beginnings.
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
