// EventApplier: the effect of each event on the pages, as blockstore/events.h states it. Rules 1
// (the order within a step) and 5 (truncate) of docs/architecture.md. Internal to blockstore.
//
// Events have been validated; those on null blocks are ignored and counted. Guarded by the store's
// mutex.
#ifndef WAYMARK_BLOCKSTORE_STORE_EVENT_APPLIER_H_
#define WAYMARK_BLOCKSTORE_STORE_EVENT_APPLIER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/store/device_steps.h"
#include "blockstore/store/last_position.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"

namespace waymark {

class EventApplier {
 public:
  // `options`: as RoutingStore::Create completed them. The references must outlive the object.
  EventApplier(const StoreOptions& options, Pages& pages, DeviceSteps& device_steps, Stats& stats);

  // The version under which keyed Binds look their keys up, as far as it is known.
  void SetVersion(std::uint64_t version) { version_ = version; }
  // A step of `version` begins. Blocks that found a page by key since the last begin, under another
  // version, lose it (external KV).
  void Begin(std::uint64_t version);
  // Applies events in the order given. `last`: the last step begun. Lives of blocks start at the
  // step after it, since the step to come is not known, and no late event names a step above it.
  void Apply(std::span<const Event> events, std::uint64_t last);
  // After the claims of `step`: applies the *own seals*, those reported for the step that is begun
  // next (with step 0), per block the last one. An own seal belongs to the life in which it was
  // reported: it moves with its block, and ends when another life begins.
  void ApplyOwnSeals(std::uint64_t step);
  // What waits for the next begin: own seals, in the order reported, one for each block with
  // Entry::sealing; and entries with Entry::found_by_key, of which the last of an entry counts.
  struct KeyedBind {
    EntryIndex entry;
    std::uint64_t version;
  };
  [[nodiscard]] std::vector<Event>& own_seals() { return own_seals_; }
  [[nodiscard]] std::vector<KeyedBind>& keyed_binds() { return keyed_binds_; }
  [[nodiscard]] std::uint64_t version() const { return version_; }
  // Forgets own seals and keyed Binds, because events were lost.
  void Forget(std::uint64_t version);

 private:
  // `now`: where a life of a block begins.
  void ApplyOne(const Event& event, RelStep now);
  void ApplyBind(const Event& event, RelStep now);
  void ApplyRetain(const Event& event, RelStep now);
  void ApplyRelease(const Event& event, RelStep now);
  void ApplySeal(const Event& event, RelStep now);
  void ApplyCopy(const Event& event, RelStep now);
  void ApplyMove(std::span<const Event> pairs, RelStep now);
  void ApplyTruncate(const Event& event, RelStep now);
  void ApplyReset(RelStep now);
  void PendSeal(const Event& seal, RelStep now);
  // The position of the own seal that waits for the block.
  [[nodiscard]] std::optional<std::size_t> FindOwnSeal(std::int32_t block);
  // The life of a block ends, or its seal is reported again: the one that waits is forgotten.
  void ForgetOwnSeal(std::int32_t block);
  void MoveOwnSeals(std::span<const Event> pairs);
  // An entry found a page by key under `version`.
  void AddKeyedBind(EntryIndex e, std::uint64_t version);
  // The version under which an entry with found_by_key got its page.
  [[nodiscard]] std::uint64_t KeyedVersion(EntryIndex e);
  // Prefetches the entry of an event.
  void Prefetch(const Event& event) const;

  Pages& pages_;
  BlockTable& table_;  // parts of pages_
  PagePool& pool_;
  DeviceSteps& device_steps_;
  Stats& stats_;
  const std::int32_t num_blocks_;
  std::uint64_t version_ = 0;
  // Both lists are compacted when they have as many items: those that count, and as many more that
  // compacting them costs little for each.
  const std::size_t max_own_seals_;
  const std::size_t max_keyed_binds_;
  std::vector<Event> own_seals_;
  LastPosition own_seal_of_;  // by block
  std::vector<KeyedBind> keyed_binds_;
  LastPosition keyed_bind_of_;                           // by entry
  std::vector<std::optional<std::size_t>> seals_found_;  // scratch of MoveOwnSeals
  struct MovedEntry {
    Entry entry;
    SealCold seal;
    std::uint64_t keyed_version;
  };
  std::vector<MovedEntry> moved_;  // scratch of Move
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_EVENT_APPLIER_H_
