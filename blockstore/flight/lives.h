// BlockLives: follows when each block was sealed, to find out at which step an event was missed.
// Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_LIVES_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_LIVES_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "blockstore/events.h"
#include "blockstore/store/stats.h"

namespace waymark::flight {

// The event was missed at a step in (after, by].
struct StepWindow {
  std::uint64_t after = 0;
  std::uint64_t by = 0;
};

// Not thread safe.
class BlockLives {
 public:
  // Takes in events, which belong to the step that is begun next. Call both for every record of
  // the flight, in order.
  void Report(std::span<const Event> events);
  void Begin(std::uint64_t step);
  // The steps between which the event was missed that explains `finding`, a finding of the landing
  // of step `landed`. If a write contradicts the rows that were kept, those are the steps of the
  // two writes. If two pages with one key contradict each other, that is found only when the second
  // is sealed, long after the writes: then the event was missed between the write of the rows and
  // that seal.
  [[nodiscard]] StepWindow FindWindow(const AuditFinding& finding, std::uint64_t landed) const;

 private:
  // The steps of the last seal of a block's present life, and of the life before it, since events
  // are ahead of landings. 0: none.
  using Seals = std::array<std::uint64_t, 2>;

  // Begins a new life of `block`.
  void StartLife(std::int32_t block);

  absl::flat_hash_map<std::int32_t, Seals> seals_;
  std::uint64_t next_ = 1;            // the step that is begun next, as far as is known
  std::vector<std::int32_t> sealed_;  // the blocks that were sealed since the last begin
};

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_LIVES_H_
