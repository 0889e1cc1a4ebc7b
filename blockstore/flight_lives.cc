#include "blockstore/flight_lives.h"

#include <algorithm>

namespace waymark::flight {

void BlockLives::Renew(std::int32_t block, std::uint64_t step) {
  Lives& lives = lives_[block];
  lives[1] = lives[0];
  lives[0] = Life{};
  lives[0].began = step;
}

void BlockLives::Note(const OwnedStepBatch& batch) {
  for (const Event& event : batch.events) {
    switch (event.type) {
      case EventType::kBind:
      case EventType::kCopy:
      case EventType::kTruncate:  // what was sealed is not sealed any more
        Renew(event.block, batch.step);
        break;
      case EventType::kMove:
        Renew(event.block, batch.step);
        Renew(event.source, batch.step);
        break;
      case EventType::kReset:
        lives_.clear();
        break;
      case EventType::kSeal: {
        Life& life = lives_[event.block][0];
        const BlockKey key = event.GetKey();
        if (!life.key.empty() && !(life.key == key)) life.other_key = {life.sealed, batch.step};
        life.key = key;
        life.sealed = batch.step;
        break;
      }
      case EventType::kRetain:
      case EventType::kRelease:
        break;
    }
  }
}

StepWindow BlockLives::Date(const AuditFinding& finding, std::uint64_t landed) const {
  if (finding.step == landed && finding.kept_step < finding.step) {
    return {finding.kept_step, finding.step};
  }
  if (const auto found = lives_.find(finding.block); found != lives_.end()) {
    for (const Life& life : found->second) {
      if (life.other_key.by != 0) return life.other_key;
    }
    // The rows of a life that was never sealed, sealed as those of the next.
    for (const Life& life : found->second) {
      if (life.sealed > finding.step) return {finding.step, life.sealed};
    }
  }
  return {std::min(finding.kept_step, finding.step), std::max(finding.kept_step, landed)};
}

}  // namespace waymark::flight
