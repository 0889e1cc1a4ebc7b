// BlockLives: when each block was sealed, so that a contradiction can be dated. Internal
// to blockstore.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_LIVES_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_LIVES_H_

#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "blockstore/events.h"
#include "blockstore/store/stats.h"

namespace waymark::flight {

// The event is missing after step `after`, and not after step `by`.
struct StepWindow {
  std::uint64_t after = 0;
  std::uint64_t by = 0;
};

// Follows the events of a flight. One thread.
class BlockLives {
 public:
  void Note(const OwnedStepBatch& batch);
  // Where the event must be missing that `finding`, made while `landed` landed, speaks of. A write
  // that contradicts what was kept dates it by the two writes. Two pages under one key contradict
  // only when they are sealed, long after the writes: then it lies between the write of the rows
  // that were found and the seal that gave them away.
  [[nodiscard]] StepWindow Date(const AuditFinding& finding, std::uint64_t landed) const;

 private:
  // The steps of the batches that brought the last seal of a block's present life, and of the one
  // before: events run ahead of landings. 0: none.
  using Seals = std::array<std::uint64_t, 2>;

  void Renew(std::int32_t block);

  absl::flat_hash_map<std::int32_t, Seals> seals_;
};

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_LIVES_H_
