// BlockLives: when each block was bound and sealed, so that a contradiction can be dated. Internal
// to blockstore.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_LIVES_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_LIVES_H_

#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "blockstore/events.h"
#include "blockstore/stats.h"

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
  // only when they are sealed, long after the writes: then the block was sealed under two keys in
  // what its events call one life, and the missing event lies between the seals.
  [[nodiscard]] StepWindow Date(const AuditFinding& finding, std::uint64_t landed) const;

 private:
  struct Life {
    std::uint64_t began = 0;
    BlockKey key;              // of its last seal
    std::uint64_t sealed = 0;  // the step of the batch that brought that seal
    StepWindow other_key;      // `by` is not 0: sealed under another key before
  };
  // The present life of a block, and the one before: events run ahead of landings.
  using Lives = std::array<Life, 2>;

  void Renew(std::int32_t block, std::uint64_t step);

  absl::flat_hash_map<std::int32_t, Lives> lives_;
};

}  // namespace waymark::flight

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_LIVES_H_
