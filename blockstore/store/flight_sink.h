// FlightSink: receives everything that happens to a store, in order, to record it.
#ifndef WAYMARK_BLOCKSTORE_STORE_FLIGHT_SINK_H_
#define WAYMARK_BLOCKSTORE_STORE_FLIGHT_SINK_H_

#include <cstdint>
#include <span>

#include "blockstore/digest.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/row_info.h"

namespace waymark {

// How a begun step ended. A step that was dropped at its begin counts as kDrop.
enum class StepEnd : std::uint8_t { kSubmit = 1, kDrop = 2, kCancel = 3 };

// A page or a row of one, named at its place in the flight by one of those that have it.
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
  std::int32_t row = -1;  // of the page; -1: all

  friend bool operator==(const VoidedPage&, const VoidedPage&) = default;
};

// What happened, and the fields that say more. A store reports those from kStep on, except kClose.
// The numbers are the format's (docs/internals/flight.md).
enum class FlightRecordKind : std::uint16_t {
  kInfo = 1,        // the head of a flight, and nowhere else
  kCheckpoint = 2,  // only as the first record: the state of the store at the start: `bytes`
  // A step's turn has come: `step`, `version`, `end`, `slots`. After a Submit its
  // kLanded comes before anything else that changes the store.
  kStep = 3,
  // The rows of submitted `step` are written, its own seals applied. A store reports the step
  // alone, and its rows by OnRows before; without that (its StepRows was null, or its ids did
  // not come) it has none. A flight has rows [begin, begin + verdicts.size()): `bytes`, `verdicts`,
  // `more`.
  kLanded = 4,
  // Snapshot `read_id` of `blocks`, rows [first, last), was taken, with `last_step` and `keys`.
  kSnapshot = 5,
  kReleased = 6,  // its pages were returned; they may be evicted and reused from now on: `read_id`
  kRead = 7,      // its rows [begin, begin + infos.size()) were read: `read_id`, `infos`, `digests`
  kClose = 8,     // the last record: `records`, `complete`
  kSchedule = 9,  // the schedule of `step` was opened, whose weights have `version`
  kEvents = 10,   // `events` took effect; a group of simultaneous Moves is in one record
  // Records were lost. The table and the index are empty. `step`: the last one told, lost ones
  // included; `version`: the current one.
  kPoison = 11,
  // The audit made the valid rows that `voided` names missing (audit). Not reported for a page that
  // nothing has any more.
  kVoided = 12,
};

// A record of a flight; List<T> holds its items. Plain data. Members that the kind does not name
// are unspecified.
template <template <class> class List>
struct FlightFields {
  FlightRecordKind kind = FlightRecordKind::kClose;
  std::uint64_t step = 0;
  std::uint64_t version = 0;       // of the weights
  StepEnd end = StepEnd::kSubmit;  // submit (its kLanded records follow), drop or cancel
  bool more = false;               // kLanded: the next record of the step continues its rows
  std::uint64_t read_id = 0;       // number of the snapshot, counted from 1 in its store
  std::int64_t first = 0;          // the snapshot's rows [first, last) of the sequence
  std::int64_t last = 0;
  std::uint64_t last_step = 0;  // SnapshotOwner::last_step
  std::int64_t begin = 0;       // first row: of the step (kLanded), of the sequence (kRead)
  VoidedPage voided = {};
  std::uint64_t records = 0;      // the number of records before the close
  bool complete = true;           // false: the recorder had to stop, and later records are missing
  List<Event> events = {};        // in the order of their effect
  List<BlockId> blocks = {};      // of the snapshot
  List<BlockKey> keys = {};       // of its first blocks: SnapshotOwner::keys
  List<std::int64_t> slots = {};  // kStep: of each row
  List<RowInfo> infos = {};       // as the read returned them
  List<std::uint64_t> digests = {};  // RowDigest of each row of `infos`; 0 if the row is missing
  List<Reason> verdicts = {};        // one per landed row: kNone, or why it is missing
  // kLanded: the rows, of the width that FlightInfo::rows says; a missing row is zeros.
  // kCheckpoint: its payload (store/checkpoint.h).
  List<std::uint8_t> bytes = {};
};

// A record in memory of who reports it, valid during the call.
template <class T>
using FlightSpan = std::span<const T>;
using FlightEntry = FlightFields<FlightSpan>;

// Called by the RoutingStore whose StoreOptions::flight it is. Must be short, must not allocate
// after warm-up, and must not call the store.
class FlightSink {
 public:
  virtual ~FlightSink() = default;

  // The seed of the key index's hash for a store whose options have none, so that its replay has
  // the same index keys. 0: any. Called when the store is made.
  [[nodiscard]] virtual std::uint64_t key_seed() const { return 0; }

  // Called where a record takes effect, with the store's lock held, in the order of the effects;
  // but kRead on reader threads, several at a time, once per read.
  virtual void On(const FlightEntry& entry) = 0;
  // All rows of a submitted step, also those that were not stored: row i has the ids at
  // ids[i * row_bytes], or is missing for the reason verdicts[i]; padding and rows that did not ask
  // are not captured. The place for hashing: called by the thread that lands, without the lock,
  // when the rows have been published and the step has not ended. One step at a time; valid until
  // its kLanded.
  virtual void OnRows(std::uint64_t step, std::span<const std::uint8_t> ids,
                      std::span<const Reason> verdicts) = 0;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_FLIGHT_SINK_H_
