// EventApplier: the effect of each event on the pages, as blockstore/events.h states it; rules 6
// (own seals) and 7 (late news) of docs/internals/architecture.md. Internal to blockstore.
//
// Events have been validated; those on null blocks are ignored and counted. Guarded by the store's
// mutex.
#ifndef WAYMARK_BLOCKSTORE_STORE_EVENT_APPLIER_H_
#define WAYMARK_BLOCKSTORE_STORE_EVENT_APPLIER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"

namespace waymark {

// Finds the last item with a key in a list that grows at its end.
// Looks at an item when a Find first needs it, so that a list in which nothing is looked for costs
// nothing. Find throws std::bad_alloc. One thread at a time.
class LastPosition {
 public:
  // The position of the last item whose key is `key`. `key_of(item)`: its key. O(1) and the items
  // added since the last call.
  template <class List, class KeyOf>
  [[nodiscard]] std::optional<std::size_t> Find(const List& list, std::int64_t key,
                                                const KeyOf& key_of) {
    for (; looked_at_ < list.size(); ++looked_at_)
      last_[key_of(list[looked_at_])] = looked_at_;
    const auto found = last_.find(key);
    if (found == last_.end()) return std::nullopt;
    return found->second;
  }
  // The key of an item changes: the old one has no item, and the new one has that at `position`.
  // REQUIRES: a Find has looked at it.
  void Erase(std::int64_t key) { last_.erase(key); }
  void Set(std::int64_t key, std::size_t position) { last_[key] = position; }
  // The list is empty, or its items have other positions.
  void Clear() {
    if (looked_at_ == 0) return;
    last_.clear();
    looked_at_ = 0;
  }

 private:
  std::unordered_map<std::int64_t, std::size_t> last_;
  std::size_t looked_at_ = 0;
};

class EventApplier {
 public:
  // `options`: as RoutingStore::Create completed them. The references must outlive the object.
  EventApplier(const StoreOptions& options, Pages& pages, Stats& stats);

  // The weights of what follows, under which keyed Binds look their keys up. If they are others
  // than before, blocks that found a page by key since the last step lose it (external KV): their
  // KV is the coming step's.
  void SetVersion(std::uint64_t version);
  // A step runs: what was found by key before it has its weights.
  void ForgetKeyedBinds();
  // Applies events in the order given. `last`: the last step. `now`: the step in which a life of a
  // block begins, above it.
  void Apply(std::span<const Event> events, std::uint64_t last, std::uint64_t now);
  // Rule 6. After the rows of `step`: applies the *own seals*, those reported for a step behind the
  // last one, or with step 0, per block the last one. An own seal belongs to the life in which it
  // was reported: it moves with its block, and ends when another life begins.
  void ApplyOwnSeals(std::uint64_t step);
  // Rule 6: the step of the own seals did not run.
  void DiscardOwnSeals();
  // What waits for the next step: own seals, in the order reported, one for each block with
  // Entry::sealing; and entries that found a page by key, of which those with Entry::found_by_key
  // count.
  [[nodiscard]] std::vector<Event>& own_seals() { return own_seals_; }
  [[nodiscard]] std::vector<EntryIndex>& keyed_binds() { return keyed_binds_; }
  [[nodiscard]] std::uint64_t version() const { return version_; }
  // Forgets own seals and keyed Binds, because events were lost.
  void Forget(std::uint64_t version);

 private:
  void ApplyOne(const Event& event, std::uint64_t last, std::uint64_t now);
  void ApplyBind(const Event& event, std::uint64_t now);
  void ApplyRetain(const Event& event, std::uint64_t now);
  void ApplyRelease(const Event& event, std::uint64_t now);
  void ApplySeal(const Event& event, std::uint64_t now);
  void ApplyCopy(const Event& event, std::uint64_t now);
  void ApplyMove(std::span<const Event> pairs, std::uint64_t now);
  void ApplyTruncate(const Event& event, std::uint64_t now);
  void ApplyReset(std::uint64_t now);
  void PendSeal(const Event& seal, std::uint64_t now);
  // The position of the own seal that waits for the block.
  [[nodiscard]] std::optional<std::size_t> FindOwnSeal(std::int32_t block);
  // The life of a block ends, or its seal is reported again: the one that waits is forgotten.
  void ForgetOwnSeal(std::int32_t block);
  void MoveOwnSeals(std::span<const Event> pairs);
  // An entry found a page by key.
  void AddKeyedBind(EntryIndex e);
  // Prefetches the entry of an event.
  void Prefetch(const Event& event) const;

  Pages& pages_;
  BlockTable& table_;  // parts of pages_
  PagePool& pool_;
  Stats& stats_;
  const std::int32_t num_blocks_;
  std::uint64_t version_ = 0;
  // Both lists are compacted when they have as many items: those that count, and as many more that
  // compacting them costs little for each.
  const std::size_t max_own_seals_;
  const std::size_t max_keyed_binds_;
  std::vector<Event> own_seals_;
  LastPosition own_seal_of_;  // by block
  std::vector<EntryIndex> keyed_binds_;
  std::vector<std::optional<std::size_t>> seals_found_;  // scratch of MoveOwnSeals
  struct MovedEntry {
    Entry entry;
    SealCold seal;
    Birth birth;
  };
  std::vector<MovedEntry> moved_;  // scratch of Move
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_EVENT_APPLIER_H_
