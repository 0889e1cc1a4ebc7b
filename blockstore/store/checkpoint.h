// StoreCheckpoint: all that a store knows, as bytes. Internal to blockstore: the flight recorder's.
#ifndef WAYMARK_BLOCKSTORE_STORE_CHECKPOINT_H_
#define WAYMARK_BLOCKSTORE_STORE_CHECKPOINT_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "blockstore/store/store.h"

namespace waymark {

// Of stores with Landing::kCaller, on the engine's thread.
class StoreCheckpoint {
 public:
  // Appends table, seals, key index, stamps, rows and the order of eviction to `out`. Live
  // snapshots are not part of it: the pages that only they hold are left out. FailedPrecondition
  // while a step is in flight.
  [[nodiscard]] static absl::Status Save(RoutingStore& store, std::string& out);
  // Makes a fresh store what the saved one was. It must have been made with the same shape, blocks,
  // pages and key seed. InvalidArgument naming what does not fit; the store is then unusable. Any
  // bytes are safe.
  [[nodiscard]] static absl::Status Load(std::span<const std::uint8_t> bytes, RoutingStore& store);
  // Does the page copies that are queued, without landing a step: what a snapshot may wait for.
  static void RunCopies(RoutingStore& store);

 private:
  class Loader;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_CHECKPOINT_H_
