// Cells, passes and excuses: what the KV of every physical row is, and why its routing may be
// missing. The simulated engine keeps them; the checker compares the store with them. Nothing here
// uses the store.
//
// A pass is the forward pass of one token. A cell names the pass whose KV is in a physical row, and
// why this copy of the KV may lack its routing. Excuses of the pass itself (its step was dropped,
// ...) are in the ExcuseBook. Not thread safe.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_CELLS_H_
#define WAYMARK_ADAPTERS_SIMULATORS_CELLS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "adapters/simulators/hash.h"
#include "blockstore/row_info.h"

namespace waymark::sim {

// A set of reasons, one bit for each.
using ReasonSet = std::uint8_t;
[[nodiscard]] constexpr ReasonSet SetOf(Reason reason) {
  return static_cast<ReasonSet>(1u << static_cast<int>(reason));
}
static_assert(kNumStoreReasons <= 8);

// Why a row may be missing, by what the engine did.
enum class Excuse : std::uint8_t {
  kNone = 0,
  kByKey,     // no excuse: the row of another pass over the same prefix is acceptable
  kExternal,  // the KV came from another engine
  kNotAsked,  // the request did not ask for routing
  kDrop,      // the step was dropped
  kSilent,    // a layer did not write the row
  // The index has no page for the key, or another one: the block was moved to a tier with rows of
  // another version than its seal; the prefix cache was reset while it was there; the page
  // was not indexed under its key; two blocks shared it, and it has the key of one of them.
  kNoPage,
};

// A set of excuses. Empty: the row must be there.
class ExcuseSet {
 public:
  constexpr ExcuseSet() = default;
  // The set of this one; empty for kNone and kByKey, which are no excuses.
  constexpr explicit ExcuseSet(Excuse why)
      : bits_(why == Excuse::kNone || why == Excuse::kByKey
                  ? 0
                  : static_cast<std::uint16_t>(1u << static_cast<int>(why))) {}
  constexpr ExcuseSet& operator|=(ExcuseSet other) {
    bits_ |= other.bits_;
    return *this;
  }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  [[nodiscard]] constexpr bool Has(Excuse why) const { return (bits_ & ExcuseSet(why).bits_) != 0; }
  // One bit for each excuse.
  [[nodiscard]] constexpr std::uint16_t bits() const { return bits_; }
  // The reasons that the store may give for a row with these excuses, and no others.
  [[nodiscard]] ReasonSet Reasons() const {
    ReasonSet reasons = 0;
    const auto allow = [&](Excuse why, ReasonSet these) {
      if (Has(why)) reasons |= these;
    };
    allow(Excuse::kExternal, SetOf(Reason::kExternalKv));
    allow(Excuse::kNotAsked, SetOf(Reason::kNotCaptured));
    allow(Excuse::kNoPage, SetOf(Reason::kExternalKv));
    allow(Excuse::kDrop, SetOf(Reason::kCapacity));
    allow(Excuse::kSilent, SetOf(Reason::kNotCaptured) | SetOf(Reason::kInvalidId));
    return reasons;
  }

 private:
  std::uint16_t bits_ = 0;
};

// With the token prefix, identifies the forward pass of one token. Request 0: another engine's.
struct Pass {
  std::uint32_t request = 0;
  std::uint32_t step = 0;
  std::uint32_t version = 0;

  friend bool operator==(const Pass&, const Pass&) = default;
};

// The KV of one physical row of the pool.
struct KvCell {
  PrefixHash prefix;              // the token's prefix, the token included
  Pass pass;                      // the pass that computed the KV
  Excuse excuse = Excuse::kNone;  // why this copy may lack its routing
  bool present = false;           // whether the row has KV at all
};

// The KV that a request attended to at one position. The prefix is the request's own.
struct SeenCell {
  Pass pass;
  Excuse excuse = Excuse::kNone;

  friend bool operator==(const SeenCell&, const SeenCell&) = default;
};

// The cells that a request attended to, in the order of time at each position. The first one is
// what the request's log-probabilities came from.
class SeenCells {
 public:
  // Adds `cell` at `position` unless it is there already.
  void Add(std::int64_t position, const SeenCell& cell) {
    const auto index = static_cast<std::size_t>(position);
    if (index >= cells_.size()) cells_.resize(index + 1);
    if (std::find(cells_[index].begin(), cells_[index].end(), cell) == cells_[index].end()) {
      cells_[index].push_back(cell);
    }
  }
  // Removes positions >= `position`.
  void Truncate(std::int64_t position) {
    if (position < static_cast<std::int64_t>(cells_.size())) {
      cells_.resize(static_cast<std::size_t>(position));
    }
  }
  // A copy of positions < `end`.
  [[nodiscard]] SeenCells Prefix(std::int64_t end) const {
    SeenCells copy = *this;
    copy.Truncate(end);
    return copy;
  }
  // The cells of `position`; empty: it has attended to none.
  [[nodiscard]] std::span<const SeenCell> At(std::int64_t position) const {
    if (position >= static_cast<std::int64_t>(cells_.size())) return {};
    return cells_[static_cast<std::size_t>(position)];
  }

 private:
  std::vector<absl::InlinedVector<SeenCell, 1>> cells_;  // most positions have one
};

// Which passes may be without their rows, and why.
class ExcuseBook {
 public:
  // The row of this pass may be missing, and so may the row of any pass with the same key.
  // `block_start` is the prefix at the start of the block.
  void Add(const Pass& pass, const PrefixHash& prefix, const PrefixHash& block_start, Excuse why) {
    passes_[PassOf(pass, prefix)] |= ExcuseSet(why);
    keys_[KeyOf(pass.version, prefix)] |= ExcuseSet(why);
    blocks_[KeyOf(pass.version, block_start)] |= ExcuseSet(why);
  }
  // Rows of any pass over this prefix may be missing.
  void AddKey(std::uint32_t version, const PrefixHash& prefix, Excuse why) {
    keys_[KeyOf(version, prefix)] |= ExcuseSet(why);
  }

  // The page of this pass was not indexed under its key, so a copy of the KV that comes back by key
  // may be without the row.
  void AddKeyless(const Pass& pass, const PrefixHash& prefix) {
    keyless_.insert(PassOf(pass, prefix));
  }
  [[nodiscard]] bool IsKeyless(const Pass& pass, const PrefixHash& prefix) const {
    return keyless_.contains(PassOf(pass, prefix));
  }

  // A pass over this block is without one of its rows. Of two pages with one key the index keeps
  // the one with more rows that were asked for, whatever became of them, so a row that only the
  // other page has may be missing.
  void AddGap(std::uint32_t version, const PrefixHash& block_start) {
    gaps_.insert(KeyOf(version, block_start));
  }
  [[nodiscard]] bool HasGap(std::uint32_t version, const PrefixHash& block_start) const {
    return !OfBlock(version, block_start).empty() || gaps_.contains(KeyOf(version, block_start));
  }

  // A block with rows of `older` was sealed under `version`. Its page is in the index if every one
  // of those rows is missing, and then gives their reasons for rows of `version`.
  void AddSealOfOlder(std::uint32_t version, std::uint32_t older, const PrefixHash& block_start) {
    if (!HasGap(older, block_start)) return;
    AddGap(version, block_start);
    blocks_[KeyOf(version, block_start)] |= OfBlock(older, block_start);
  }

  // What Add was called with for this pass.
  [[nodiscard]] ExcuseSet OfPass(const Pass& pass, const PrefixHash& prefix) const {
    return Find(passes_, PassOf(pass, prefix));
  }
  // What was added for any pass over this prefix, or of a block that starts with it.
  [[nodiscard]] ExcuseSet OfKey(std::uint32_t version, const PrefixHash& prefix) const {
    return Find(keys_, KeyOf(version, prefix));
  }
  [[nodiscard]] ExcuseSet OfBlock(std::uint32_t version, const PrefixHash& block_start) const {
    return Find(blocks_, KeyOf(version, block_start));
  }

 private:
  static ExcuseSet Find(const absl::flat_hash_map<std::uint64_t, ExcuseSet>& sets,
                        std::uint64_t key) {
    if (sets.empty()) return {};
    const auto found = sets.find(key);
    return found == sets.end() ? ExcuseSet() : found->second;
  }
  static std::uint64_t KeyOf(std::uint32_t version, const PrefixHash& prefix) {
    return Mix(prefix.lo ^ version, prefix.hi);
  }
  static std::uint64_t PassOf(const Pass& pass, const PrefixHash& prefix) {
    return Mix(KeyOf(pass.version, prefix), std::uint64_t{pass.request} << 32 | pass.step);
  }

  absl::flat_hash_map<std::uint64_t, ExcuseSet> passes_;
  absl::flat_hash_map<std::uint64_t, ExcuseSet> keys_;
  absl::flat_hash_map<std::uint64_t, ExcuseSet> blocks_;
  absl::flat_hash_set<std::uint64_t> gaps_;
  absl::flat_hash_set<std::uint64_t> keyless_;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_CELLS_H_
