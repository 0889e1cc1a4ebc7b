// What the KV in every physical row really is: passes, the cells that hold them, and the excuses.
//
// A pass is one token's forward pass. A cell says whose KV lies in a physical row, and why this
// copy of it may have come without its routing. Excuses of the pass itself (its step was dropped,
// ...) lie in the ExcuseBook, keyed by pass. Nothing here knows the store.
#ifndef WAYMARK_ADAPTERS_SIMULATORS_CELLS_H_
#define WAYMARK_ADAPTERS_SIMULATORS_CELLS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "adapters/simulators/hash.h"

namespace waymark::sim {

// Why a row may be missing, as the engine knows it.
enum class Excuse : std::uint8_t {
  kNone = 0,
  kByKey,     // not an excuse: another pass over the same prefix may stand in
  kExternal,  // the KV came from outside
  kNotAsked,  // the request did not ask for routing
  kOldSeal,   // went to a tier with rows of another version than it was sealed in
  kReset,     // the prefix cache was reset while it lay in a tier
  kDrop,      // its step was dropped
  kCancel,    // a forward that was cancelled had claimed its row
  kSilent,    // a layer did not write it
};
inline constexpr int kNumExcuses = 9;

// Together with the token prefix: one token's forward pass. Request 0: another engine's.
struct Pass {
  std::uint32_t request = 0;
  std::uint32_t step = 0;
  std::uint32_t version = 0;

  friend bool operator==(const Pass&, const Pass&) = default;
};

// What lies in one physical row.
struct KvCell {
  PrefixHash prefix;
  Pass pass;
  Excuse excuse = Excuse::kNone;
  bool present = false;
};

// What a request attended to at one position; the prefix is the request's own.
struct SeenCell {
  Pass pass;  // step 0: nothing yet
  Excuse excuse = Excuse::kNone;

  friend bool operator==(const SeenCell&, const SeenCell&) = default;
};

// The cells that a request attended to, in time order at each position; the first one is what its
// log-probabilities came from. Compact: most positions have one.
class SeenCells {
 public:
  // Adds `cell` unless it is there.
  void Add(std::int64_t position, const SeenCell& cell);
  // Forgets positions >= `position`.
  void Truncate(std::int64_t position);
  // A copy of positions < `end`.
  [[nodiscard]] SeenCells Prefix(std::int64_t end) const;

  [[nodiscard]] bool Has(std::int64_t position) const {
    return position < size() && first_[static_cast<std::size_t>(position)].pass.step != 0;
  }
  // REQUIRES: Has(position), for all of these.
  [[nodiscard]] const SeenCell& First(std::int64_t position) const {
    return first_[static_cast<std::size_t>(position)];
  }
  [[nodiscard]] const SeenCell& Last(std::int64_t position) const;
  [[nodiscard]] bool Single(std::int64_t position) const {
    return more_.empty() || !more_.contains(position);
  }
  // All cells of `position`, in time order; replaces the contents of `out`.
  void All(std::int64_t position, std::vector<SeenCell>& out) const;
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(first_.size()); }

 private:
  std::vector<SeenCell> first_;
  absl::flat_hash_map<std::int64_t, std::vector<SeenCell>> more_;  // the second and later ones
};

// What destroyed the rows of passes.
class ExcuseBook {
 public:
  // The row of this pass may be missing, and so may any that stands in for it. `block_start` is the
  // prefix at the start of the block.
  void Add(const Pass& pass, const PrefixHash& prefix, const PrefixHash& block_start, Excuse why);
  // Rows of any pass over this prefix may be missing.
  void AddKey(std::uint32_t version, const PrefixHash& prefix);

  // The page that this pass lay in got no key, so this copy of its KV may come back without a row.
  void AddKeyless(const Pass& pass, const PrefixHash& prefix);
  [[nodiscard]] bool IsKeyless(const Pass& pass, const PrefixHash& prefix) const;

  // A forward that did not run was to hold this row: its page may keep the key from one that has
  // it, so a row that comes by key may be missing.
  void AddRival(std::uint32_t version, const PrefixHash& prefix);
  [[nodiscard]] bool HasRival(std::uint32_t version, const PrefixHash& prefix) const;

  // A pass over this block came without one of its rows. Of two pages under one key the fuller
  // stays, so a row that only this pass had may be missing where the other stands in.
  void AddGap(std::uint32_t version, const PrefixHash& block_start);
  [[nodiscard]] bool HasGap(std::uint32_t version, const PrefixHash& block_start) const;

  [[nodiscard]] Excuse OfPass(const Pass& pass, const PrefixHash& prefix) const;
  [[nodiscard]] bool HasKey(std::uint32_t version, const PrefixHash& prefix) const;
  [[nodiscard]] bool HasBlock(std::uint32_t version, const PrefixHash& block_start) const;

 private:
  static std::uint64_t KeyOf(std::uint32_t version, const PrefixHash& prefix) {
    return Mix(prefix.lo ^ version, prefix.hi);
  }
  static std::uint64_t PassOf(const Pass& pass, const PrefixHash& prefix) {
    return Mix(KeyOf(pass.version, prefix), std::uint64_t{pass.request} << 32 | pass.step);
  }

  absl::flat_hash_map<std::uint64_t, Excuse> passes_;
  absl::flat_hash_set<std::uint64_t> keys_;
  absl::flat_hash_set<std::uint64_t> blocks_;
  absl::flat_hash_set<std::uint64_t> rivals_;
  absl::flat_hash_set<std::uint64_t> gaps_;
  absl::flat_hash_set<std::uint64_t> keyless_;
};

}  // namespace waymark::sim

#endif  // WAYMARK_ADAPTERS_SIMULATORS_CELLS_H_
