// StepWriter: writes the rows of a step into pages, bytes and stamps; rule 5 of
// docs/internals/architecture.md. Internal to blockstore.
//
// The thread that applies the log, which alone writes pages. It locks the store's mutex to look
// rows up and to publish them, never while it copies ids.
#ifndef WAYMARK_BLOCKSTORE_STORE_STEP_WRITER_H_
#define WAYMARK_BLOCKSTORE_STORE_STEP_WRITER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "blockstore/mutex.h"
#include "blockstore/store/audit.h"
#include "blockstore/store/pages.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/step_ids.h"

namespace waymark {

// A step whose turn it is.
struct StepToWrite {
  std::uint64_t step = 0;
  std::uint64_t version = 0;
  std::span<const std::int64_t> slots;  // of its rows
  Why lost = Reason::kNotCaptured;      // why its rows are missing if there are no ids
};

class StepWriter {
 public:
  static constexpr std::size_t kChunk = 64;  // rows per call of StepRows::Land

  // The references must outlive the object. `mutex` guards pages and stats.
  StepWriter(const StoreOptions& options, StoreCore& core, Mutex& mutex, Pages& pages, Audit& audit,
             Stats& stats);

  // Writes the rows of the step, in the order of the batch. Of the rows of one slot the first that
  // asked counts, or the first, if none did. If `ids` throws, the rest is not captured. Any other
  // exception leaves whole rows or none, and the store has failed.
  void Write(const StepToWrite& step, StepIds& ids) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Where row `row` of the chunk goes; page == kNoPage: nowhere.
  struct Target {
    PageIndex page = kNoPage;
    std::uint16_t row = 0;
    bool pinned = false;  // it pins its page: one pin a run of rows on a page
    bool asked = false;   // and it is no padding
  };

  // Looks up rows [first, first + n) for n <= kChunk, and stores the stamps that they have until
  // their bytes are there. Returns n: it ends before a page of the chunk is copied.
  std::size_t LookUp(const StepToWrite& step, std::size_t first, bool ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Row `at` of that chunk, of entry `e`, which exists. False if the chunk must end before it.
  bool LookUpRow(const StepToWrite& step, std::size_t first, std::size_t at, std::int64_t slot,
                 EntryIndex e, bool ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a row of the chunk so far goes to the page.
  [[nodiscard]] bool InChunk(PageIndex page, std::size_t rows) const;
  // The bytes of the chunk's rows are there, as `verdicts_` say.
  void Publish(const StepToWrite& step, std::size_t rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives those rows of the chunk a destination that asked and have none, since a flight has them.
  void SendRestToFlight(std::size_t first, std::span<std::uint8_t*> destinations);
  // The chunk has landed: its other rows go to the flight, too, and those have none again.
  void CopyToFlight(std::size_t first, std::span<std::uint8_t*> destinations);
  [[nodiscard]] std::uint8_t* FlightRow(std::size_t row) {
    return flight_ids_.data() + row * core_.row_bytes;
  }

  const StoreOptions& options_;
  StoreCore& core_;
  Mutex& mutex_;
  Pages& pages_ ABSL_GUARDED_BY(mutex_);
  Audit& audit_;
  Stats& stats_ ABSL_GUARDED_BY(mutex_);

  // Scratch of one step.
  std::array<Target, kChunk> targets_;
  std::array<std::uint8_t*, kChunk> destinations_{};
  std::array<Reason, kChunk> verdicts_{};
  std::vector<IgnoredRow> ignored_;  // for the audit; each pins its page
  std::vector<std::uint8_t> flight_ids_;
  std::vector<Reason> flight_verdicts_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STEP_WRITER_H_
