// FlightSink: everything that happens to a store, in order, for whoever records it.
#ifndef WAYMARK_BLOCKSTORE_STORE_FLIGHT_SINK_H_
#define WAYMARK_BLOCKSTORE_STORE_FLIGHT_SINK_H_

#include <cstdint>
#include <span>

#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/row_info.h"

namespace waymark {

// How a begun step ended.
enum class StepEnd : std::uint8_t { kSubmit = 1, kDrop = 2, kCancel = 3 };

// Called by a RoutingStore that was made with one. OnBegin, OnEnd, OnLanded, OnSnapshot and
// OnReleased come under the store's lock (so their order is the order in which they took effect):
// be short, do not allocate after warm-up, do not call the store. OnRead comes from reader threads,
// one call a read.
class FlightSink {
 public:
  virtual ~FlightSink() = default;

  // `dropped`: the store dropped the step at once (full ring, stamps that wrap).
  virtual void OnBegin(const StepBatch& batch, bool dropped) = 0;
  virtual void OnEnd(std::uint64_t step, StepEnd end) = 0;
  // The step's rows as its source gave them, before the claims were looked at: row i is
  // ids[i * row_bytes ...], or missing for verdicts[i]. `slots`: of a step with device_slots, the
  // slot of each row; empty otherwise.
  virtual void OnLanded(std::uint64_t step, std::span<const std::uint8_t> ids,
                        std::span<const Reason> verdicts,
                        std::span<const std::int64_t> slots = {}) = 0;
  // A snapshot was taken. `read_id` counts up from 1 in this store.
  virtual void OnSnapshot(std::uint64_t read_id, std::span<const BlockId> blocks,
                          std::int64_t first, std::int64_t last) = 0;
  // The pages of snapshot `read_id` have come back (they may be evicted and reused from here on).
  virtual void OnReleased(std::uint64_t read_id) = 0;
  // Rows [begin, begin + infos.size()) of snapshot `read_id` were read; digests[i] is the XXH3-64
  // of the stored bytes of row i, 0 where it is missing.
  virtual void OnRead(std::uint64_t read_id, std::int64_t begin, std::span<const RowInfo> infos,
                      std::span<const std::uint64_t> digests) = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_FLIGHT_SINK_H_
