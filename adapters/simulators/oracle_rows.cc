#include "adapters/simulators/oracle_rows.h"

#include <algorithm>

namespace waymark::sim {

OracleRowsPool::OracleRowsPool() = default;
OracleRowsPool::~OracleRowsPool() = default;

OracleRows* OracleRowsPool::Take() {
  MutexLock lock(mutex_);
  if (free_.empty()) {
    all_.push_back(std::make_unique<OracleRows>(this));
    free_.reserve(all_.size());  // Return allocates nothing: a store calls it when it has no memory
    free_.push_back(all_.back().get());
  }
  OracleRows* rows = free_.back();
  free_.pop_back();
  rows->taken_ = true;
  return rows;
}

void OracleRowsPool::Return(OracleRows* rows) {
  MutexLock lock(mutex_);
  if (!rows->taken_) {
    ++returned_twice_;
    return;
  }
  rows->taken_ = false;
  free_.push_back(rows);
}

std::int64_t OracleRowsPool::returned_twice() const {
  MutexLock lock(mutex_);
  return returned_twice_;
}

std::int64_t OracleRowsPool::out() const {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(all_.size() - free_.size());
}

void OracleRows::Fill(const RouteOracle* oracle, std::int32_t stage, std::uint64_t step,
                      std::uint64_t version, std::span<const PrefixHash> prefixes,
                      std::int64_t silent, Reason verdict) {
  oracle_ = oracle;
  stage_ = stage;
  step_ = step;
  version_ = version;
  prefixes_.assign(prefixes.begin(), prefixes.end());
  slots_.clear();
  slots_lost_ = false;
  silent_ = silent;
  verdict_ = verdict;
}

void OracleRows::Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
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

bool OracleRows::LandLayers(std::uint32_t row, std::uint8_t* destination,
                            std::span<std::uint8_t> written) {
  oracle_->StageRow(stage_, prefixes_[row], version_, step_, destination);
  const bool silent = row == silent_;
  const bool invalid = silent && verdict_ == Reason::kInvalidId;
  std::fill(written.begin(), written.end(), static_cast<std::uint8_t>(invalid ? 0 : 1));
  if (silent) written[row % written.size()] = 0;
  return std::find(written.begin(), written.end(), 1) != written.end();
}

}  // namespace waymark::sim
