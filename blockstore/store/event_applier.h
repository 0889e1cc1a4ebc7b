// EventApplier: the effect of each event on the pages, as blockstore/events.h states it. Rules 1
// (the order within a step) and 5 (truncate) of docs/architecture.md. Internal to blockstore.
//
// Events have been validated; those on null blocks are ignored and counted. Guarded by the store's
// mutex.
#ifndef WAYMARK_BLOCKSTORE_STORE_EVENT_APPLIER_H_
#define WAYMARK_BLOCKSTORE_STORE_EVENT_APPLIER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/events.h"
#include "blockstore/store/device_steps.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"

namespace waymark {

class EventApplier {
 public:
  // `options`: as RoutingStore::Create completed them. The references must outlive the object.
  EventApplier(const StoreOptions& options, Pages& pages, DeviceSteps& device_steps, Stats& stats);

  // Applies the events of a batch in the order given, except for its own seals: those that name
  // `step`, the step of the batch.
  void Apply(std::span<const Event> events, std::uint64_t step);
  // After the claims of `step`: applies its own seals, per block the last one. Not to a block that
  // began a new life after the seal: its rows are of other tokens.
  void ApplyOwnSeals(std::span<const Event> events, std::uint64_t step);

 private:
  // One event, or one group of simultaneous moves. `now`: the step of the batch, where a life of a
  // block begins.
  void ApplyOne(const Event& event, RelStep now);
  void ApplyBind(const Event& event, RelStep now);
  void ApplyRetain(const Event& event, RelStep now);
  void ApplyRelease(const Event& event, RelStep now);
  void ApplySeal(const Event& event, RelStep now);
  void ApplyCopy(const Event& event, RelStep now);
  void ApplyMove(std::span<const Event> pairs, RelStep now);
  void ApplyTruncate(const Event& event);
  void ApplyReset();
  // Notes that the block has a seal of the step that is about to begin.
  void NoteOwnSeal(const Event& seal, RelStep now);
  // Applies the noted seals of the sources of a group of moves, reported before it.
  void SealBeforeMove(std::span<const Event> before, std::span<const Event> pairs, RelStep now);
  // Prefetches the entry of an event.
  void Prefetch(const Event& event) const;

  Pages& pages_;
  BlockTable& table_;  // parts of pages_
  PagePool& pool_;
  DeviceSteps& device_steps_;
  Stats& stats_;
  const std::int32_t num_blocks_;
  bool own_seals_ = false;                 // the batch has some
  std::vector<std::uint32_t> step_seals_;  // scratch of ApplyOwnSeals: positions of events
  struct MovedEntry {
    Entry entry;
    SealCold seal;
  };
  std::vector<MovedEntry> moved_;  // scratch of Move
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_EVENT_APPLIER_H_
