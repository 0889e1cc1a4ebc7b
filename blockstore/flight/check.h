// CheckFlight: re-runs a recorded flight through a fresh store, and proves or indicts the engine's
// events.
//
// Two judgements, independent of each other. The *reads*: was each row that was read what the
// recorded events say it must be? The *audit*: do later writes contradict rows that were kept, so
// that an event must be missing? The second does not look at the recorded reads: an engine that
// forgets an event records its own wrong reads.
#ifndef WAYMARK_BLOCKSTORE_FLIGHT_CHECK_H_
#define WAYMARK_BLOCKSTORE_FLIGHT_CHECK_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/flight/reader.h"
#include "blockstore/row_info.h"
#include "blockstore/store/stats.h"

namespace waymark {

struct CheckOptions {
  // The replaying store may take so many bytes.
  std::uint64_t max_bytes = std::uint64_t{8} << 30;
  // Differences and findings that are kept one by one; all are counted.
  std::size_t max_listed = 100;
  // Called now and then with the records done so far; may be empty.
  std::function<void(std::uint64_t records)> progress;
};

// A row that was read as something else than the events make it.
struct ReadDifference {
  std::uint64_t read_id = 0;
  std::int64_t row = 0;     // position in the sequence
  std::int32_t block = -1;  // that the row lay in; -1: a null block
  RowInfo recorded;
  RowInfo replayed;
  bool other_route = false;  // both have the row, with different ids

  // One line for people.
  [[nodiscard]] std::string ToString() const;
};

// What the audit of the replay found: `block` was written by `step` as if it had a new life, and no
// Bind (nor Copy, Move, Reset, Truncate) tells of it after step `after`.
struct Indictment {
  std::int32_t block = -1;  // -1: two pages sealed with one key contradict, and neither has a block
  std::uint64_t step = 0;   // the event is missing at this step or before
  std::uint64_t after = 0;  // and after this one: the last step whose rows the block rightly held
  std::uint32_t rows = 0;   // rows compared
  double agreement = 0;     // of them, in [0, 1]
  std::string event;        // the event that must be missing, e.g. "Bind(block 7)"

  [[nodiscard]] std::string ToString() const;
};

struct FlightVerdict {
  // What the flight holds.
  std::uint64_t records = 0;
  std::uint64_t steps = 0;
  std::uint64_t events = 0;
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  bool from_checkpoint = false;
  bool truncated = false;   // ends inside a record, or was never closed: the rest is judged
  bool incomplete = false;  // the recorder lost something, and stopped there

  // The reads.
  std::uint64_t reads = 0;
  std::uint64_t rows_read = 0;
  std::uint64_t rows_right =
      0;  // the row and all that is said of it, or missing for the same reason
  std::array<std::uint64_t, kNumReasons> rows_missing{};  // of the right ones
  // Pages were short, and whose page went first is free: missing in one of the two, or the same row
  // from another step.
  std::uint64_t rows_excused = 0;
  std::uint64_t rows_differing = 0;
  std::uint64_t reads_differing = 0;
  std::uint64_t rows_not_judged =
      0;  // read through snapshots from before the flight, or unfinished
  std::vector<ReadDifference> differences;  // the first of them

  // The audit.
  std::uint64_t audited_rows = 0;
  std::uint64_t pages_voided = 0;
  std::vector<Indictment> indictments;  // the first of them, oldest first

  [[nodiscard]] bool reads_right() const { return rows_differing == 0; }
  [[nodiscard]] bool indicted() const { return pages_voided > 0; }
  [[nodiscard]] bool clean() const { return reads_right() && !indicted(); }
};

// Re-runs the flight from its first record. Errors: those of FlightReader::Next; InvalidArgument
// when records contradict each other; ResourceExhausted when the store does not fit `max_bytes`.
[[nodiscard]] absl::StatusOr<FlightVerdict> CheckFlight(FlightReader& reader,
                                                        const CheckOptions& options = {});

struct RemovalOptions {
  std::uint64_t max_bytes = std::uint64_t{8} << 30;
  // Of the Binds whose removal is tried: at most so many, evenly spread over the flight.
  std::uint64_t max_removals = 1000;
  std::size_t max_listed = 20;
  // Called after each removal; may be empty.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

// A Bind whose removal makes a row wrong, and what the audit says of it.
struct RemovedBind {
  std::uint64_t step = 0;
  std::int32_t block = -1;
  bool with_key = false;
  std::uint64_t rows_wrong = 0;  // that an unaudited store would give
  bool indicted = false;
  bool block_named = false;  // an indictment names its block,
  bool step_named = false;   // and the Bind's step lies between the two steps that it names
};

// Over all single-Bind removals: how well does the audit find them? A removal is harmful when, with
// the audit off, a row that is read comes out as another token's: agreement under the threshold.
// (Another pass over the same tokens is no other route.)
struct RemovalReport {
  std::uint64_t binds = 0;  // in the flight, of blocks that are not null
  std::uint64_t tried = 0;
  std::uint64_t harmful = 0;      // of those tried
  std::uint64_t indicted = 0;     // of the harmful: the audit indicts
  std::uint64_t block_named = 0;  // of the harmful: and names the block,
  std::uint64_t step_named = 0;   // the block and the step
  std::uint64_t rows_wrong = 0;   // of the harmful, with the audit off
  std::uint64_t rows_still_wrong =
      0;  // and with it on: read before the contradiction, or never caught
  std::vector<RemovedBind> missed;  // harmful and not indicted with block and step: the first

  // indicted / harmful; 1 when nothing is harmful.
  [[nodiscard]] double fraction() const;
};

// Replays the flight as it is, and once or twice for each removed Bind. The flight is held in
// memory. Errors: as CheckFlight.
[[nodiscard]] absl::StatusOr<RemovalReport> SingleBindRemovals(FlightReader& reader,
                                                               const RemovalOptions& options = {});

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_FLIGHT_CHECK_H_
