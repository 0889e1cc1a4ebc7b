#include "blockstore/flight/lives.h"

#include <algorithm>

namespace waymark::flight {

void BlockLives::StartLife(std::int32_t block) {
  Seals& seals = seals_[block];
  seals = {0, seals[0]};
}

void BlockLives::Observe(const OwnedStepBatch& batch) {
  for (const Event& event : batch.events) {
    switch (event.type) {
      case EventType::kBind:
      case EventType::kCopy:
      case EventType::kTruncate:  // it ends the seal
        StartLife(event.block);
        break;
      case EventType::kMove:
        StartLife(event.block);
        StartLife(event.src);
        break;
      case EventType::kReset:
        seals_.clear();
        break;
      case EventType::kSeal:
        seals_[event.block][0] = batch.step;
        break;
      case EventType::kRetain:
      case EventType::kRelease:
        break;
    }
  }
}

StepWindow BlockLives::FindWindow(const AuditFinding& finding, std::uint64_t landed) const {
  if (finding.step == landed && finding.kept_step < finding.step) {
    return {finding.kept_step, finding.step};
  }
  if (const auto found = seals_.find(finding.block); found != seals_.end()) {
    for (const std::uint64_t sealed : found->second) {
      if (sealed > finding.step) return {finding.step, sealed};
    }
  }
  return {std::min(finding.kept_step, finding.step), std::max(finding.kept_step, landed)};
}

}  // namespace waymark::flight
