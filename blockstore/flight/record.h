// FlightRecord: one parsed record of a flight. FlightSink (store/flight_sink.h) says in full what
// most kinds mean, and docs/flight.md defines the bytes.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_RECORD_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_RECORD_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "blockstore/events.h"
#include "blockstore/flight/info.h"
#include "blockstore/ids.h"
#include "blockstore/row_info.h"
#include "blockstore/store/flight_sink.h"

namespace waymark {

// The kind of a record, and the members of FlightRecord that it sets. The numbers of the kinds in a
// file are others (flight::Kind).
enum class FlightRecordKind : std::uint8_t {
  kCheckpoint = 1,  // the state of the store at the start of the flight: `bytes`
  kStep,            // a step's turn: `step`, `version`, `slots`, `device_slots`, `end`
  kLanded,          // rows [begin, begin + verdicts.size()) of `step`: `bytes`, `slots`, `more`
  kSnapshot,        // snapshot `read_id` of `blocks`, rows [first, last), was taken
  kReleased,        // its pages came back: `read_id`
  kRead,            // its rows [begin, begin + infos.size()) were read: `read_id`, `digests`
  kClose,           // the last record: `records`, `complete`
  kSchedule,        // the schedule of `step` was opened, for weights of `version`
  kEvents,          // `events` took effect
  kVoided,          // the audit made the valid rows of `voided` missing
  kPoison,          // records were lost: `step` (the last one told), `version`
};

// Plain data. Members that the kind does not name are unspecified. Reuse one object for many
// records, to reuse its memory.
struct FlightRecord {
  FlightRecordKind kind = FlightRecordKind::kClose;
  std::uint64_t offset = 0;  // byte offset of the record's heading in the file

  std::vector<Event> events;       // in the order of their effect
  std::uint64_t version = 0;       // of the weights
  std::uint64_t step = 0;          // number of the step
  bool device_slots = false;       // its rows' slots come with them
  StepEnd end = StepEnd::kSubmit;  // submit (its kLanded records follow), drop or cancel
  bool more = false;               // the next kLanded record of the step continues its rows
  std::uint64_t read_id = 0;       // number of the snapshot, counted from 1 in its store
  std::vector<BlockId> blocks;     // of the snapshot
  VoidedPage voided;
  std::int64_t first = 0;  // the snapshot's rows [first, last) of the sequence
  std::int64_t last = 0;
  std::int64_t begin = 0;              // first row: of the step (kLanded), of the sequence (kRead)
  std::vector<RowInfo> infos;          // as the read returned them
  std::vector<std::uint64_t> digests;  // XXH3-64 of each row of `infos`; 0 if the row is missing
  std::vector<Reason> verdicts;        // one per landed row: kNone, or why it is missing
  // kStep: the slot of each row, or the range that a device_slots step may write. kLanded: the
  // slot of each row of a device_slots step, else empty.
  std::vector<std::int64_t> slots;
  bool has_slots = false;  // kLanded: of a device_slots step whose slots are known
  // kLanded: the rows, kDigestRowBytes or shape.row_bytes() each (FlightInfo::rows). kCheckpoint:
  // its payload (store/checkpoint.h). A recorder writes a missing row as zeros.
  std::vector<std::uint8_t> bytes;
  std::uint64_t records = 0;  // the number of records before the close
  bool complete = true;       // false: the recorder had to stop, and later records are missing
};

namespace flight {

struct Heading;  // flight/format.h

// Fills `record`, but for its offset, from the payload of the record with this heading; compares no
// checksums. `info`, from the flight's head, gives the width of rows and the most rows of a step.
// Any bytes are safe, and take no more memory than 16 times their size. InvalidArgument naming
// what the format does not allow; `record` is then unspecified.
[[nodiscard]] absl::Status DecodeRecord(const Heading& heading,
                                        std::span<const std::uint8_t> payload,
                                        const FlightInfo& info, FlightRecord& record);

}  // namespace flight
}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_RECORD_H_
