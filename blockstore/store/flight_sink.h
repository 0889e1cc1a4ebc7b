// FlightSink: receives everything that happens to a store, in order, to record it.
#ifndef WAYMARK_BLOCKSTORE_STORE_FLIGHT_SINK_H_
#define WAYMARK_BLOCKSTORE_STORE_FLIGHT_SINK_H_

#include <cstdint>
#include <optional>
#include <span>

#include "blockstore/digest.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/row_info.h"

namespace waymark {

// How a begun step ended. A step that was dropped at its begin counts as kDrop.
enum class StepEnd : std::uint8_t { kSubmit = 1, kDrop = 2, kCancel = 3 };

// A step whose turn has come.
struct AppliedStep {
  std::uint64_t step = 0;
  std::uint64_t version = 0;            // of the weights
  std::span<const std::int64_t> slots;  // slot of each row; with device_slots: the range
  bool device_slots = false;
  StepEnd end = StepEnd::kSubmit;
};

// A page, named at its place in the flight by one of those that have it.
struct VoidedPage {
  enum class By : std::uint8_t {
    kBlock = 1,  // page `ordinal` of `block`
    kSnapshot,   // page `ordinal` of the pages with rows of snapshot `read_id`
    kKey,        // the page that the key index has under `index_key`
  };
  By by = By::kBlock;
  std::int32_t block = -1;
  std::uint32_t ordinal = 0;
  std::uint64_t read_id = 0;
  Digest128 index_key{};

  friend bool operator==(const VoidedPage&, const VoidedPage&) = default;
};

// Called by the RoutingStore whose StoreOptions::flight it is, where a record takes effect: all
// functions but OnRows and OnRead are called with the store's lock held, in the order in which what
// they report took effect. They must be short, must not allocate after warm-up, and must not call
// the store. OnRows is called by the thread that lands, without the lock. OnRead is called on
// reader threads, several at a time, once per read.
class FlightSink {
 public:
  virtual ~FlightSink() = default;

  // The seed of the key index's hash for a store whose options have none, so that its replay has
  // the same index keys. 0: any. Called when the store is made.
  [[nodiscard]] virtual std::uint64_t key_seed() const { return 0; }

  // The schedule of `step` was opened, whose weights have `version`.
  virtual void OnSchedule(std::uint64_t step, std::uint64_t version) = 0;
  // These events took effect; a group of simultaneous Moves is in one call. Valid during the call.
  virtual void OnEvents(std::span<const Event> events) = 0;
  // A step's turn has come. Valid during the call. After a Submit, its OnLanded comes before
  // anything else that changes the store.
  virtual void OnStep(const AppliedStep& step) = 0;
  // All rows of a submitted step, also those that were not stored: row i has the ids at
  // ids[i * row_bytes], or is missing for the reason verdicts[i]. `slots`: the slot of each row,
  // for a step with device_slots; otherwise nullopt. Not called for a step with device_slots whose
  // slots are lost. The place for hashing: the rows have been published, the step has not ended,
  // and no lock is held. One step at a time; valid until its OnLanded.
  virtual void OnRows(std::uint64_t step, std::span<const std::uint8_t> ids,
                      std::span<const Reason> verdicts,
                      std::optional<std::span<const std::int64_t>> slots = {}) = 0;
  // The rows of a submitted step are written, its own seals applied. It has the rows of the OnRows
  // before this call; without one (its StepRows was null, its ids did not come, or its slots are
  // lost) it has none.
  virtual void OnLanded(std::uint64_t step) = 0;
  // A snapshot was taken. `read_id` numbers the snapshots of this store from 1.
  virtual void OnSnapshot(std::uint64_t read_id, std::span<const BlockId> blocks,
                          std::int64_t first, std::int64_t last) = 0;
  // The pages of snapshot `read_id` were returned; they may be evicted and reused from now on.
  virtual void OnReleased(std::uint64_t read_id) = 0;
  // The audit made the valid rows of a page missing (audit). Not called for a page that nothing
  // has any more.
  virtual void OnVoided(const VoidedPage& page) = 0;
  // Records were lost. The table and the index are empty. `last_step` is the last step told, lost
  // ones included; `version` is the current version.
  virtual void OnPoison(std::uint64_t last_step, std::uint64_t version) = 0;
  // Rows [begin, begin + infos.size()) of snapshot `read_id` were read. digests[i] is the RowDigest
  // of row begin + i, 0 if it is missing.
  virtual void OnRead(std::uint64_t read_id, std::int64_t begin, std::span<const RowInfo> infos,
                      std::span<const std::uint64_t> digests) = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_FLIGHT_SINK_H_
