// ToldSteps: the steps that stand in the log and wait for their turn, and what was fetched of them;
// rules 4 and 11 of docs/internals/architecture.md. Internal to blockstore.
#ifndef WAYMARK_BLOCKSTORE_STORE_TOLD_STEPS_H_
#define WAYMARK_BLOCKSTORE_STORE_TOLD_STEPS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "blockstore/shape.h"
#include "blockstore/store/step_ids.h"
#include "blockstore/store/store_core.h"
#include "blockstore/store/store_log.h"
#include "blockstore/store/store_options.h"

namespace waymark {

// The rows of a step that was fetched before its turn: memory of the store, so that the owner of
// the ids has its buffer back although an earlier step is not there yet. What is written from it is
// what would be written from the owner's. The thread that applies the log.
class FetchedRows final : public StepRows {
 public:
  explicit FetchedRows(const RoutingShape& shape)
      : row_bytes_(shape.row_bytes()), layers_(static_cast<std::size_t>(shape.num_layers)) {}

  // Reads the rows of `ids`, whose Poll is true. `batch`: the slots that were told, with padding
  // for slots of null blocks; of a device step the range, whose slots come with the ids and are
  // asked for once, however often this is called. False if it takes more than `room` bytes: nothing
  // but those slots was read, and they stay the owner's. Throws std::bad_alloc.
  bool Read(StepIds& ids, std::span<const std::int64_t> batch, bool device_slots, std::size_t room);
  // Whether all that is needed was read. Else only Slots() of this object is to be used.
  [[nodiscard]] bool read() const { return read_; }
  // Whether Slots() has what the owner said.
  [[nodiscard]] bool has_slots() const { return has_slots_; }
  [[nodiscard]] std::size_t bytes() const {
    return ids_.size() + verdicts_.size() + written_.size() +
           kept_slots_.size() * sizeof(std::int64_t);
  }

  std::optional<std::span<const std::int64_t>> Slots() override { return slots_; }
  void Land(std::uint32_t first, std::span<std::uint8_t* const> destinations,
            std::span<Reason> verdicts) override;
  bool LandLayers(std::uint32_t row, std::uint8_t* destination,
                  std::span<std::uint8_t> written) override;
  void Done() override {}

 private:
  // Which rows asked and are no padding; empty: all. The faults of the others are not counted.
  std::vector<bool> AskedOf(std::span<const std::int64_t> batch, bool device_slots) const;

  const std::size_t row_bytes_;
  const std::size_t layers_;
  bool read_ = false;
  bool has_slots_ = false;
  std::optional<std::span<const std::int64_t>> slots_;  // the owner's until the rows were read
  std::vector<std::int64_t> kept_slots_;
  std::vector<std::uint8_t> ids_;  // [rows, row_bytes]
  std::vector<Reason> verdicts_;   // [rows]
  // [rows, layers]: those that were written of rows without a row; empty if there is none.
  std::vector<std::uint8_t> written_;
};

// The thread that applies the log. Calls foreign code, so never under the store's mutex.
class ToldSteps {
 public:
  // The references must outlive the object.
  ToldSteps(const StoreOptions& options, StoreCore& core, StoreLog& log);

  // Looks at the steps behind the front of the log, which waits: asks each that has its verdict
  // whether its ids are there, fetches those that are, and calls Done() of what was fetched.
  // Returns whether a step was fetched. Throws std::bad_alloc.
  bool FetchAhead();
  // What was fetched of the step at the front; null: nothing. It stays until PopFront.
  [[nodiscard]] FetchedRows* FetchedOfFront() const {
    return told_.empty() ? nullptr : told_.front().fetched.get();
  }
  // The step at the front leaves the log.
  void PopFront() {
    if (told_.empty()) return;
    if (told_.front().fetched != nullptr) used_ -= told_.front().fetched->bytes();
    told_.pop_front();
    waiting_ = waiting_ && !told_.empty();
  }
  // Whether a submitted step behind the front had no ids, or no room, when FetchAhead looked.
  [[nodiscard]] bool waiting() const { return waiting_; }

  // The step of these rows was lost because they did not come. They get their Done() when they
  // come, or when the store ends. Throws std::bad_alloc: never, then.
  void Abandon(StepRows* rows) { abandoned_.push_back(rows); }
  [[nodiscard]] bool any_abandoned() const { return !abandoned_.empty(); }
  // Calls Done() of abandoned rows that have come by now. `all`: GiveUp() and Done() of the others.
  void ReturnAbandoned(bool all);

  // ---- counters. Any thread.
  [[nodiscard]] std::uint64_t fetched() const { return fetched_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kMostTold = 4096;  // that are looked at

  struct Told {
    StepRecord* record = nullptr;
    std::unique_ptr<FetchedRows> fetched;
  };
  bool Fetch(Told& told);

  StoreCore& core_;
  StoreLog& log_;
  const std::size_t ahead_bytes_;  // of memory for rows that are fetched
  const std::int64_t block_tokens_;
  std::vector<std::int64_t> null_blocks_;  // sorted
  std::deque<Told> told_;            // the front of the log first; empty: it was not looked for
  StoreLog::Ahead ahead_;            // behind the last of told_
  std::size_t used_ = 0;             // of ahead_bytes_
  std::vector<std::int64_t> slots_;  // scratch
  bool waiting_ = false;
  std::vector<StepRows*> abandoned_;
  std::atomic<std::uint64_t> fetched_{0};
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_TOLD_STEPS_H_
