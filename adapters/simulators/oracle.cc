#include "adapters/simulators/oracle.h"

#include <algorithm>
#include <cstring>

namespace waymark::sim {

RouteOracle::RouteOracle(std::int32_t num_layers, std::int32_t top_k, std::int32_t num_experts,
                         std::int32_t stages)
    : top_k_(top_k), num_experts_(num_experts) {
  for (std::int32_t stage = 0; stage <= stages; ++stage) {
    first_layer_.push_back(num_layers * stage / stages);
  }
  for (std::int32_t k = 0; k < top_k; ++k) {
    const std::uint32_t base = static_cast<std::uint32_t>(num_experts * k / top_k);
    base_.push_back(base);
    width_.push_back(static_cast<std::uint32_t>(num_experts * (k + 1) / top_k) - base);
  }
}

RoutingShape RouteOracle::StageShape(std::int32_t stage, std::int32_t page_tokens) const {
  const auto first = first_layer_[static_cast<std::size_t>(stage)];
  const auto last = first_layer_[static_cast<std::size_t>(stage) + 1];
  RoutingShape shape;
  shape.num_layers = last - first;
  shape.top_k = top_k_;
  shape.num_experts = num_experts_;
  shape.page_tokens = page_tokens;
  if (stages() > 1) {
    for (std::int32_t layer = first; layer < last; ++layer)
      shape.layer_ids.push_back(layer);
  }
  return shape;
}

RoutingShape RouteOracle::WholeShape(std::int32_t page_tokens) const {
  RoutingShape shape = StageShape(0, page_tokens);
  shape.num_layers = first_layer_.back();
  for (auto layer = static_cast<std::int32_t>(shape.layer_ids.size());
       stages() > 1 && layer < shape.num_layers; ++layer) {
    shape.layer_ids.push_back(layer);
  }
  return shape;
}

std::size_t RouteOracle::row_bytes() const {
  return static_cast<std::size_t>(first_layer_.back()) * static_cast<std::size_t>(top_k_) *
         (num_experts_ <= 256 ? 1 : 2);
}

template <class Id>
void RouteOracle::Layers(std::int32_t first, std::int32_t last, const PrefixHash& prefix,
                         std::uint64_t version, std::uint64_t step, std::uint8_t* out) const {
  const std::uint64_t hi = prefix.hi ^ (version * 0xff51afd7ed558ccdu);
  const auto top_k = static_cast<std::size_t>(top_k_);
  const std::uint32_t* base = base_.data();
  const std::uint32_t* width = width_.data();
  for (std::int32_t layer = first; layer < last; ++layer) {
    const std::uint64_t extra = layer == last - 1 ? step * 0xc4ceb9fe1a85ec53u : 0;
    std::uint64_t bits =
        Mix(prefix.lo + static_cast<std::uint64_t>(layer) * 0xe7037ed1a0b428dbu, hi ^ extra);
    Id ids[64];
    for (std::size_t k = 0; k < top_k; ++k) {
      if (k % 8 == 0 && k != 0) bits = Mix(bits, k);
      ids[k] = static_cast<Id>(base[k] + (((bits & 0xffff) * width[k]) >> 16));
      bits = bits >> 8 | bits << 56;
    }
    // Narrow strata allow few sets of ids, so rows then differ in the order of the ids, too.
    if (num_experts_ < 4 * top_k_) {
      std::rotate(ids, ids + (Mix(bits, 1) >> 16) % top_k, ids + top_k);
    }
    std::memcpy(out, ids, top_k * sizeof(Id));
    out += top_k * sizeof(Id);
  }
}

void RouteOracle::StageRow(std::int32_t stage, const PrefixHash& prefix, std::uint64_t version,
                           std::uint64_t step, std::uint8_t* out) const {
  const auto first = first_layer_[static_cast<std::size_t>(stage)];
  const auto last = first_layer_[static_cast<std::size_t>(stage) + 1];
  if (num_experts_ <= 256) {
    Layers<std::uint8_t>(first, last, prefix, version, step, out);
  } else {
    Layers<std::uint16_t>(first, last, prefix, version, step, out);
  }
}

void RouteOracle::Row(const PrefixHash& prefix, std::uint64_t version, std::uint64_t step,
                      std::uint8_t* out) const {
  const std::size_t layer_bytes = row_bytes() / static_cast<std::size_t>(first_layer_.back());
  for (std::int32_t stage = 0; stage < stages(); ++stage) {
    StageRow(stage, prefix, version, step, out);
    out +=
        layer_bytes * static_cast<std::size_t>(first_layer_[static_cast<std::size_t>(stage) + 1] -
                                               first_layer_[static_cast<std::size_t>(stage)]);
  }
}

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
