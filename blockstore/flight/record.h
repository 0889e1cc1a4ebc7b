// FlightRecord: one thing that happened in a flight, as a reader gives it.
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

enum class FlightRecordKind : std::uint8_t {
  kCheckpoint = 1,  // the state that the flight begins with: `bytes`
  kBegin,           // `batch`, `dropped`
  kEnd,             // `step`, `end`
  kLanded,          // `step`, rows [begin, begin + verdicts.size()) of it, `more`
  kSnapshot,        // `read_id`, `blocks`, rows [first, last)
  kReleased,        // `read_id`
  kRead,            // `read_id`, rows [begin, begin + infos.size())
  kClose,           // nothing follows; `records`, `complete`
};

// Plain data; only the members named at its kind mean anything. Reuse one object for many records.
struct FlightRecord {
  FlightRecordKind kind = FlightRecordKind::kClose;
  std::uint64_t offset = 0;  // of its heading in the file

  OwnedStepBatch batch;
  bool dropped = false;  // the store dropped the step at once
  std::uint64_t step = 0;
  StepEnd end = StepEnd::kSubmit;
  bool more = false;  // more rows of the step follow
  std::uint64_t read_id = 0;
  std::vector<BlockId> blocks;
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t begin = 0;
  std::vector<RowInfo> infos;
  std::vector<std::uint64_t> digests;  // one for each info; 0 where the row is missing
  std::vector<Reason> verdicts;        // one for each row that landed
  std::vector<std::int64_t> slots;     // likewise of a step with device_slots; else empty
  // kLanded: the rows, 16 bytes each (digests) or shape.row_bytes(). kCheckpoint: its content.
  std::vector<std::uint8_t> bytes;
  std::uint64_t records = 0;  // before the close
  bool complete = true;       // false: the recorder lost something, and stopped there
};

namespace flight {

struct Heading;

// Fills `record` from one intact payload. InvalidArgument on anything the format does not allow;
// any bytes are safe. Needs the head's info for the width of rows.
[[nodiscard]] absl::Status DecodeRecord(const Heading& heading,
                                        std::span<const std::uint8_t> payload,
                                        const FlightInfo& info, FlightRecord& record);

}  // namespace flight
}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_RECORD_H_
