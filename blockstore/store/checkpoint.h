// StoreCheckpoint: the whole state of a store as bytes, and what else only a replay of a flight
// asks of a store. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_CHECKPOINT_H_
#define WAYMARK_BLOCKSTORE_STORE_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "blockstore/store/store.h"

namespace waymark {

// For stores with Landing::kCaller, on the engine's thread.
class StoreCheckpoint {
 public:
  // Appends the open schedule, own seals, table, seals, key index, stamps, rows and the order of
  // eviction to `out`. Snapshots and detached pages are left out.
  // FailedPrecondition while a step waits in the log.
  [[nodiscard]] static absl::Status Save(RoutingStore& store, std::string& out);
  // Restores the saved state into a new store, created with the same shape, blocks, pages and key
  // seed. Safe on any bytes: InvalidArgument naming what does not fit; the store is then unusable.
  [[nodiscard]] static absl::Status Load(std::span<const std::uint8_t> bytes, RoutingStore& store);
  // Takes back the pages of all released snapshots.
  static void ReclaimSnapshots(RoutingStore& store);
  // What a kPoison record of a flight reports.
  static void Poison(RoutingStore& store, std::uint64_t last_step, std::uint64_t version);

  // From now on the audit of the store voids no page: VoidPage does.
  static void KeepAuditedPages(RoutingStore& store);
  // What a kVoided record of a flight reports. Does nothing if the store has no such page.
  static void VoidPage(RoutingStore& store, const VoidedPage& page);
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_CHECKPOINT_H_
