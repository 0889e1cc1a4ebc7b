#include "blockstore/flight/lives.h"

#include <algorithm>

namespace waymark::flight {

void BlockLives::StartLife(std::int32_t block) {
  Seals& seals = seals_[block];
  seals = {0, seals[0]};
}

void BlockLives::Report(std::span<const Event> events) {
  for (const Event& event : events) {
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
        seals_[event.block][0] = next_;
        sealed_.push_back(event.block);
        break;
      case EventType::kRetain:
      case EventType::kRelease:
        break;
    }
  }
}

void BlockLives::Begin(std::uint64_t step) {
  for (const std::int32_t block : sealed_) {
    const auto found = seals_.find(block);
    if (found == seals_.end()) continue;
    for (std::uint64_t& sealed : found->second) {
      if (sealed == next_) sealed = step;
    }
  }
  sealed_.clear();
  next_ = step + 1;
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
