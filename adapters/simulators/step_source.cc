#include "adapters/simulators/step_source.h"

namespace waymark::sim {

StepSourcePool::StepSourcePool() = default;
StepSourcePool::~StepSourcePool() = default;

StepSource* StepSourcePool::Take() {
  MutexLock lock(mutex_);
  if (free_.empty()) {
    all_.push_back(std::make_unique<StepSource>(this));
    free_.push_back(all_.back().get());
  }
  StepSource* source = free_.back();
  free_.pop_back();
  return source;
}

void StepSourcePool::Return(StepSource* source) {
  MutexLock lock(mutex_);
  free_.push_back(source);
}

std::int64_t StepSourcePool::out() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(all_.size() - free_.size());
}

void StepSource::Fill(const RouteOracle* oracle, std::int32_t stage, std::uint64_t step,
                      std::uint64_t version, std::span<const PrefixHash> prefixes,
                      std::int64_t silent, Reason verdict) {
  oracle_ = oracle;
  stage_ = stage;
  step_ = step;
  version_ = version;
  prefixes_.assign(prefixes.begin(), prefixes.end());
  slots_.clear();
  silent_ = silent;
  verdict_ = verdict;
}

void StepSource::Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
                      std::span<Reason> verdicts) {
  for (std::size_t i = 0; i < destinations.size(); ++i) {
    if (destinations[i] == nullptr) continue;
    const std::size_t row = first + i;
    if (static_cast<std::int64_t>(row) == silent_) {
      verdicts[i] = verdict_;
      continue;
    }
    oracle_->StageRow(stage_, prefixes_[row], version_, step_, destinations[i]);
    verdicts[i] = Reason::kNone;
  }
}

}  // namespace waymark::sim
