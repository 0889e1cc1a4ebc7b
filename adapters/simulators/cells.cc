#include "adapters/simulators/cells.h"

#include <algorithm>

namespace waymark::sim {

void SeenCells::Add(std::int64_t position, const SeenCell& cell) {
  const auto index = static_cast<std::size_t>(position);
  if (index >= first_.size()) first_.resize(index + 1);
  SeenCell& first = first_[index];
  if (first.pass.step == 0) {
    first = cell;
    return;
  }
  if (first == cell) return;
  std::vector<SeenCell>& rest = more_[position];
  if (std::find(rest.begin(), rest.end(), cell) == rest.end()) rest.push_back(cell);
}

void SeenCells::Truncate(std::int64_t position) {
  if (position < size()) first_.resize(static_cast<std::size_t>(position));
  absl::erase_if(more_, [position](const auto& entry) { return entry.first >= position; });
}

SeenCells SeenCells::Prefix(std::int64_t end) const {
  SeenCells copy = *this;
  copy.Truncate(end);
  return copy;
}

const SeenCell& SeenCells::Last(std::int64_t position) const {
  const auto rest = more_.find(position);
  return rest == more_.end() ? First(position) : rest->second.back();
}

void SeenCells::All(std::int64_t position, std::vector<SeenCell>& out) const {
  out.clear();
  if (!Has(position)) return;
  out.push_back(First(position));
  const auto rest = more_.find(position);
  if (rest != more_.end()) out.insert(out.end(), rest->second.begin(), rest->second.end());
}

void ExcuseBook::Add(const Pass& pass, const PrefixHash& prefix, const PrefixHash& block_start,
                     Excuse why) {
  passes_.try_emplace(PassOf(pass, prefix), why);
  keys_.insert(KeyOf(pass.version, prefix));
  blocks_.insert(KeyOf(pass.version, block_start));
}

void ExcuseBook::AddKey(std::uint32_t version, const PrefixHash& prefix) {
  keys_.insert(KeyOf(version, prefix));
}

void ExcuseBook::AddKeyless(const Pass& pass, const PrefixHash& prefix) {
  keyless_.insert(PassOf(pass, prefix));
}

bool ExcuseBook::IsKeyless(const Pass& pass, const PrefixHash& prefix) const {
  return keyless_.contains(PassOf(pass, prefix));
}

void ExcuseBook::AddRival(std::uint32_t version, const PrefixHash& prefix) {
  rivals_.insert(KeyOf(version, prefix));
}

bool ExcuseBook::HasRival(std::uint32_t version, const PrefixHash& prefix) const {
  return rivals_.contains(KeyOf(version, prefix));
}

void ExcuseBook::AddGap(std::uint32_t version, const PrefixHash& block_start) {
  gaps_.insert(KeyOf(version, block_start));
}

bool ExcuseBook::HasGap(std::uint32_t version, const PrefixHash& block_start) const {
  return HasBlock(version, block_start) || gaps_.contains(KeyOf(version, block_start));
}

Excuse ExcuseBook::OfPass(const Pass& pass, const PrefixHash& prefix) const {
  if (passes_.empty()) return Excuse::kNone;
  const auto found = passes_.find(PassOf(pass, prefix));
  return found == passes_.end() ? Excuse::kNone : found->second;
}

bool ExcuseBook::HasKey(std::uint32_t version, const PrefixHash& prefix) const {
  return keys_.contains(KeyOf(version, prefix));
}

bool ExcuseBook::HasBlock(std::uint32_t version, const PrefixHash& block_start) const {
  return blocks_.contains(KeyOf(version, block_start));
}

}  // namespace waymark::sim
