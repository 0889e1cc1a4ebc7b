// SealSink: receives the pages that are sealed with a key, so that they can be stored elsewhere.
#ifndef WAYMARK_BLOCKSTORE_STORE_SEAL_SINK_H_
#define WAYMARK_BLOCKSTORE_STORE_SEAL_SINK_H_

#include <cstdint>
#include <span>

#include "blockstore/events.h"

namespace waymark {

// A page whose rows are all valid, of requests that asked, and of one version, and were written
// here. Valid during the call.
struct SealedPage {
  const BlockKey& key;                   // of its block; not empty
  std::uint32_t ordinal = 0;             // of the page in the block
  std::uint64_t version = 0;             // of the weights of all its rows
  std::span<const std::uint64_t> steps;  // [B]: that wrote the rows
  std::span<const std::uint8_t> ids;     // [B, L, K], as the store keeps them
};

// Called by the RoutingStore whose StoreOptions::seal_sink it is, by the thread that applies the
// log and with the store's lock held, when a seal with a key takes effect. Must be short, must not
// throw, and must not call the store.
class SealSink {
 public:
  virtual ~SealSink() = default;
  virtual void OnSealed(const SealedPage& page) noexcept = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_SEAL_SINK_H_
