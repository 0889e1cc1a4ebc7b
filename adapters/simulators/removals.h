// SingleBindRemovals: whether the audit finds the mistake if an engine misses one Bind, tried on a
// recorded flight.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_REMOVALS_H_
#define WAYMARK_ADAPTERS_SIMULATORS_REMOVALS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/flight/reader.h"

namespace waymark::sim {

struct RemovalOptions {
  // The most bytes that the replaying store may take.
  std::uint64_t max_bytes = std::uint64_t{8} << 30;
  // How many Binds to remove, one at a time, evenly spread over the flight.
  std::uint64_t max_removals = 1000;
  // How many missed removals the report lists.
  std::size_t max_listed = 20;
  // Called after each removal; may be empty.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

// A Bind whose removal makes a row wrong, and whether the audit found that.
struct RemovedBind {
  std::uint64_t step = 0;        // the step that was begun after the Bind
  std::int32_t block = -1;       // its block
  bool with_key = false;         // whether it had a key
  std::uint64_t rows_wrong = 0;  // wrong rows that a store without audit returns
  bool found = false;            // the audit has a finding that it does not have with the Bind
  bool block_named = false;      // such a finding names the block,
  bool step_named = false;       // and the Bind's step lies between the two steps that it names
};

// How well the audit finds a single missing Bind. A removal is harmful if, with the audit off, a
// row that is read has the route of another token: its agreement with the right row is below the
// threshold. (The route of another pass over the same token is above it.)
struct RemovalReport {
  std::uint64_t binds = 0;             // Binds in the flight, of blocks that are not null
  std::uint64_t tried = 0;             // Binds that were removed
  std::uint64_t harmful = 0;           // of those tried
  std::uint64_t found = 0;             // of the harmful: the audit has a finding
  std::uint64_t block_named = 0;       // of the harmful: a finding names the block
  std::uint64_t step_named = 0;        // of the harmful: a finding names block and step
  std::uint64_t rows_wrong = 0;        // wrong rows over all harmful removals, with the audit off
  std::uint64_t rows_still_wrong = 0;  // the same with the audit on: the rows were read before the
                                       // contradicting write, or the audit missed them
  std::vector<RemovedBind> missed;  // harmful, but block and step not named: the first max_listed

  // found / harmful; 1 if no removal is harmful.
  [[nodiscard]] double fraction() const;
};

// Replays the flight once with the audit off and once with it on, and again once or twice for each
// removed Bind. Holds the whole flight in memory. One thread. Errors as CheckFlight.
[[nodiscard]] absl::StatusOr<RemovalReport> SingleBindRemovals(FlightReader& reader,
                                                               const RemovalOptions& options = {});

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_REMOVALS_H_
