// FlightSink: receives everything that happens to a store, in order, to record it.
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

// Called by the RoutingStore whose StoreOptions::flight it is. OnBegin, OnEnd, OnLanded, OnSnapshot
// and OnReleased are called with the store's lock held, in the order in which the calls took
// effect. They must be short, must not allocate after warm-up, and must not call the store. OnRead
// is called on reader threads, several at a time, once per read.
class FlightSink {
 public:
  virtual ~FlightSink() = default;

  // A schedule was opened: Binds with a key look it up under `version` from now on.
  virtual void OnSchedule(std::uint64_t step, std::uint64_t version) { (void)step, (void)version; }
  // Events took effect. A Seal of the step that is begun next has step 0.
  virtual void OnEvents(std::span<const Event> events) { (void)events; }
  // Calls were lost. `open`: the steps in flight that the engine has not ended.
  virtual void OnPoison(std::span<const std::uint64_t> open, std::uint64_t last,
                        std::uint64_t version) {
    (void)open, (void)last, (void)version;
  }
  // A step was begun. `dropped`: the store dropped it at once, because there was no room for
  // another step in flight or because stamps wrap. `batch` is valid during the call.
  virtual void OnBegin(const StepBatch& batch, bool dropped) = 0;
  // Submit, Drop or Cancel ended a step.
  virtual void OnEnd(std::uint64_t step, StepEnd end) = 0;
  // A submitted step lands. These are all rows of its StepRows, also those that will not be stored:
  // row i has the ids at ids[i * row_bytes], or is missing for the reason verdicts[i]. `slots`: the
  // slot of each row, for a step with device_slots; otherwise empty.
  virtual void OnLanded(std::uint64_t step, std::span<const std::uint8_t> ids,
                        std::span<const Reason> verdicts,
                        std::span<const std::int64_t> slots = {}) = 0;
  // A snapshot was taken. `read_id` numbers the snapshots of this store from 1.
  virtual void OnSnapshot(std::uint64_t read_id, std::span<const BlockId> blocks,
                          std::int64_t first, std::int64_t last) = 0;
  // The pages of snapshot `read_id` were returned; they may be evicted and reused from now on.
  virtual void OnReleased(std::uint64_t read_id) = 0;
  // Rows [begin, begin + infos.size()) of snapshot `read_id` were read. digests[i] is the RowDigest
  // of row begin + i, 0 if it is missing.
  virtual void OnRead(std::uint64_t read_id, std::int64_t begin, std::span<const RowInfo> infos,
                      std::span<const std::uint64_t> digests) = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_FLIGHT_SINK_H_
