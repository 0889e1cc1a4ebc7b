#include "adapters/simulators/cells.h"

namespace waymark::sim {
namespace {

ExcuseSet Find(const absl::flat_hash_map<std::uint64_t, ExcuseSet>& sets, std::uint64_t key) {
  if (sets.empty()) return {};
  const auto found = sets.find(key);
  return found == sets.end() ? ExcuseSet() : found->second;
}

}  // namespace

ReasonSet ExcuseSet::Reasons() const {
  ReasonSet reasons = 0;
  const auto allow = [&](Excuse why, ReasonSet these) {
    if (Has(why)) reasons |= these;
  };
  allow(Excuse::kExternal, SetOf(Reason::kExternalKv));
  allow(Excuse::kNotAsked, SetOf(Reason::kNotCaptured));
  // The index has no page for the key.
  allow(Excuse::kOldSeal, SetOf(Reason::kExternalKv));
  allow(Excuse::kReset, SetOf(Reason::kExternalKv));
  allow(Excuse::kKeyless, SetOf(Reason::kExternalKv));
  allow(Excuse::kShared, SetOf(Reason::kExternalKv));
  allow(Excuse::kDrop, SetOf(Reason::kCapacity));
  allow(Excuse::kSilent, SetOf(Reason::kNotCaptured) | SetOf(Reason::kInvalidId));
  allow(Excuse::kLost, SetOf(Reason::kNotCaptured));
  return reasons;
}

void ExcuseBook::Add(const Pass& pass, const PrefixHash& prefix, const PrefixHash& block_start,
                     Excuse why) {
  passes_[PassOf(pass, prefix)] |= ExcuseSet(why);
  keys_[KeyOf(pass.version, prefix)] |= ExcuseSet(why);
  blocks_[KeyOf(pass.version, block_start)] |= ExcuseSet(why);
}

void ExcuseBook::AddKey(std::uint32_t version, const PrefixHash& prefix, Excuse why) {
  keys_[KeyOf(version, prefix)] |= ExcuseSet(why);
}

void ExcuseBook::AddKeyless(const Pass& pass, const PrefixHash& prefix) {
  keyless_.insert(PassOf(pass, prefix));
}

bool ExcuseBook::IsKeyless(const Pass& pass, const PrefixHash& prefix) const {
  return keyless_.contains(PassOf(pass, prefix));
}

void ExcuseBook::AddGap(std::uint32_t version, const PrefixHash& block_start) {
  gaps_.insert(KeyOf(version, block_start));
}

bool ExcuseBook::HasGap(std::uint32_t version, const PrefixHash& block_start) const {
  return !OfBlock(version, block_start).empty() || gaps_.contains(KeyOf(version, block_start));
}

void ExcuseBook::AddSealOfOlder(std::uint32_t version, std::uint32_t older,
                                const PrefixHash& block_start) {
  if (!HasGap(older, block_start)) return;
  AddGap(version, block_start);
  blocks_[KeyOf(version, block_start)] |= OfBlock(older, block_start);
}

ExcuseSet ExcuseBook::OfPass(const Pass& pass, const PrefixHash& prefix) const {
  return Find(passes_, PassOf(pass, prefix));
}

ExcuseSet ExcuseBook::OfKey(std::uint32_t version, const PrefixHash& prefix) const {
  return Find(keys_, KeyOf(version, prefix));
}

ExcuseSet ExcuseBook::OfBlock(std::uint32_t version, const PrefixHash& block_start) const {
  return Find(blocks_, KeyOf(version, block_start));
}

}  // namespace waymark::sim
