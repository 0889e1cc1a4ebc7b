// CheckFlight: replays a recorded flight through a fresh store and reports whether the engine's
// events were complete.
//
// It makes two independent checks. The *reads*: does each row that was read follow from the
// recorded events? The *audit*: do later writes contradict rows that were kept, so that the engine
// must have missed an event? The audit does not use the recorded reads, because an engine that
// misses an event also records wrong reads.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_CHECK_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_CHECK_H_

#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/flight/reader.h"
#include "blockstore/row_info.h"
#include "blockstore/store/stats.h"

namespace waymark {

struct CheckOptions {
  // The most bytes that the replaying store may take.
  std::uint64_t max_bytes = std::uint64_t{8} << 30;
  // How many differences, and how many missed events, the verdict lists; all are counted.
  std::size_t max_listed = 100;
  // Called every 256 records with the number of records done; may be empty.
  std::function<void(std::uint64_t records)> progress;
};

// A row that was read differently from what the recorded events make it.
struct ReadDifference {
  std::uint64_t read_id = 0;  // number of its snapshot
  std::int64_t row = 0;       // position in the sequence
  std::int32_t block = -1;    // the block of the row; -1: a null block
  RowInfo recorded;           // what the engine's store returned
  RowInfo replayed;           // what the replaying store returned
  bool other_route = false;   // both have the row, with different ids

  // One line for people.
  [[nodiscard]] std::string ToString() const;
};

// A finding of the replay's audit: `block` was written by `step` as if it had a new life, but no
// Bind (nor Copy, Move, Reset or Truncate) of it was recorded since step `after`. If no event was
// missed, a key is wrong, or rows were written to wrong slots or in another order than the batch.
struct MissedEvent {
  std::int32_t block = -1;  // -1: two pages sealed with one key contradict, and neither has a block
  std::uint64_t step = 0;   // the event is missing at this step or an earlier one,
  std::uint64_t after = 0;  // after this one: the last step whose rows were the block's own; 0:
                            // not known
  std::uint32_t rows = 0;   // rows compared
  double agreement = 0;     // mean agreement of their ids, in [0, 1]
  std::string event;        // the event that must be missing, e.g. "Bind(block 7)"

  // One line for people.
  [[nodiscard]] std::string ToString() const;
};

// The result of CheckFlight. A value.
struct FlightReport {
  // What the flight contains.
  std::uint64_t records = 0;
  std::uint64_t steps = 0;
  std::uint64_t events = 0;
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  bool from_checkpoint = false;  // it begins with a checkpoint, not with an empty store
  bool truncated = false;   // it ends inside a record or was never closed; the rest was checked
  bool incomplete = false;  // the recorder had to stop: what came later is not in the flight

  // The reads. Every row of rows_read is counted once in right, excused or differing.
  std::uint64_t reads = 0;
  std::uint64_t rows_read = 0;
  // The replay has the same ids, step, version and provenance, or misses the row for the same
  // reason.
  std::uint64_t rows_right = 0;
  std::array<std::uint64_t, kNumReasons> rows_missing{};  // of rows_right, by Reason
  // Pages were short, and which page was evicted first is not determined: the row is missing on one
  // side only, or came from another step with the same ids.
  std::uint64_t rows_excused = 0;
  std::uint64_t rows_differing = 0;
  std::uint64_t reads_differing = 0;  // reads with a differing row
  // Not in rows_read: rows of snapshots that were taken before the flight begins.
  std::uint64_t rows_not_checked = 0;
  std::vector<ReadDifference> differences;  // the first max_listed

  // The audit.
  std::uint64_t audited_rows = 0;          // rows that it compared
  std::uint64_t pages_voided = 0;          // pages whose rows it voided
  std::vector<MissedEvent> missed_events;  // the first max_listed, oldest first

  // Of rows_right, those that are valid.
  [[nodiscard]] std::uint64_t rows_valid() const {
    return std::accumulate(rows_missing.begin(), rows_missing.end(), rows_right, std::minus<>());
  }
  [[nodiscard]] bool reads_right() const { return rows_differing == 0; }
  // Whether writes contradict kept rows: see MissedEvent.
  [[nodiscard]] bool has_missed_event() const { return pages_voided > 0; }
  // Whether there was something to compare: a valid row that was read, or a row written twice.
  [[nodiscard]] bool checked() const { return rows_valid() + audited_rows > 0; }
  [[nodiscard]] bool clean() const { return reads_right() && !has_missed_event(); }
};

// Replays the flight from its first record, whatever the reader has read before. One thread.
// Errors of FlightReader::Next; InvalidArgument if records contradict each other; ResourceExhausted
// if the replaying store does not fit `max_bytes`.
[[nodiscard]] absl::StatusOr<FlightReport> CheckFlight(FlightReader& reader,
                                                       const CheckOptions& options = {});

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_CHECK_H_
