// StoreLog: the ordered log between the engine's thread and the state of a store. Internal to
// blockstore.
//
// The engine's thread validates what needs no state, appends a record, and publishes it: no lock,
// no system call, no allocation. The thread that holds the store's lock applies the records in
// their order. Records lie in a ring. If the ring is full, they go to an overflow ring, whose
// memory is reserved and not touched before; if that is full too, records are lost, and a *poison*
// record follows them as soon as there is room. The verdict of a step is never lost: it is written
// into the step's record. docs/internals/architecture.md, "The log", has the rules.
#ifndef WAYMARK_BLOCKSTORE_STORE_STORE_LOG_H_
#define WAYMARK_BLOCKSTORE_STORE_STORE_LOG_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/fork_guard.h"
#include "blockstore/ids.h"
#include "blockstore/step_code.h"
#include "blockstore/store/event_code.h"
#include "blockstore/store/flight_sink.h"
#include "blockstore/store/log_records.h"
#include "blockstore/store/log_ring.h"
#include "blockstore/store/page_memory.h"
#include "blockstore/store/slot_code.h"
#include "blockstore/store/stamp.h"

namespace waymark {

// What the calls of the engine's thread are validated against. Constant.
struct LogLimits {
  SlotLimits slots;                       // StoreOptions
  std::uint32_t max_steps_in_flight = 0;  // StoreOptions
  std::size_t ring_bytes = 0;             // touched when the log is made
  std::size_t overflow_bytes = 0;         // reserved when the log is made
};

// Lies in memory that a forked child finds zeroed: no call of the engine's thread gets its turn
// there, and the step path pays nothing to know it. The list of open steps and the ring follow in
// the same memory, in huge pages where the system has them: with cold caches, each page that a step
// touches costs about as much as two cache lines.
class StoreLog {
 public:
  struct Destroy {
    void operator()(StoreLog* log) const { log->~StoreLog(); }
  };
  using Pointer = std::unique_ptr<StoreLog, Destroy>;

  // The largest step number + 1: a stamp has so many bits for it.
  static constexpr std::uint64_t kStepLimit = std::uint64_t{1} << kStepBits;
  // The most that a step, but the first one, may be above the last step told: a number that is far
  // off is wrong, and no step below it could be told any more.
  static constexpr std::uint64_t kMaxStepJump = std::uint64_t{1} << 27;

  // ResourceExhausted if the memory cannot be mapped. `guard`: becomes the log's, and must
  // outlive it.
  [[nodiscard]] static absl::StatusOr<Pointer> Create(const LogLimits& limits, ForkGuard& guard);
  StoreLog(const StoreLog&) = delete;
  StoreLog& operator=(const StoreLog&) = delete;

  // ---- the engine's thread; a second thread in one of these gets FailedPrecondition (kBusy), and
  // so does a forked child (kForked).
  // On an error nothing has been appended; after kLogFull the poison record will say so, except for
  // a snapshot, whose loss changes nothing.

  // Held by a call of the engine's thread: no call of another thread comes between its records.
  class Turn {
   public:
    explicit Turn(StoreLog& log)
        : log_(log), taken_(log.free_.exchange(false, std::memory_order_acquire)) {}
    ~Turn() {
      if (taken_) log_.free_.store(true, std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    [[nodiscard]] bool taken() const { return taken_; }
    // The code of a call that did not get its turn.
    [[nodiscard]] StepCode refusal() const { return log_.Refused(); }

   private:
    StoreLog& log_;
    const bool taken_;
  };

  // RoutingStore has the meaning of the calls of the same name.
  [[nodiscard]] StepCode Schedule(std::uint64_t step, std::uint64_t version);
  [[nodiscard]] StepCode Report(std::span<const Event> events);
  [[nodiscard]] StepCode Begin(const StepBatch& batch);
  // The verdict of a step's ids. NotFound if it is not open.
  [[nodiscard]] StepCode Submit(std::uint64_t step, StepRows* rows);
  [[nodiscard]] StepCode End(std::uint64_t step, StepEnd how, bool no_room = false);
  // Events were lost before they could be reported: as if their records had been lost here.
  [[nodiscard]] StepCode LoseRecords();
  // Appends the record, whose header and counts are set here, with these blocks and the keys that
  // `owner` has of them. REQUIRES: the turn was taken; block ids below num_blocks.
  [[nodiscard]] StepCode TakeSnapshot(const Turn& turn, SnapshotRecord record,
                                      std::span<const BlockId> blocks, const SnapshotOwner& owner);
  // Appends the poison record if records were lost and there is room by now. Returns whether none
  // is owed.
  bool SettleLoss();
  // The last step told, as the engine's thread has reported it; 0 before the first.
  [[nodiscard]] std::uint64_t last_step() const { return last_; }
  // To the numbers of a checkpoint, or of a loss that a flight recorded.
  void SetSteps(std::uint64_t last, std::uint64_t schedule, std::uint64_t version);
  // Calls that were refused because the log was full.
  [[nodiscard]] std::uint64_t lost() const { return lost_count_; }

  // ---- the thread that holds the store's lock

  // Where the log ended when it was asked.
  struct Mark {
    LogRing::Tail overflow, ring;
  };
  [[nodiscard]] Mark LoadEnd() const;
  // The oldest record before `end`; null if all of them have been applied. Valid until Pop.
  [[nodiscard]] RecordHeader* Front(const Mark& end);
  // Removes the record of Front.
  void Pop();
  // Gives the room of all removed records back.
  void Retire();
  // A place ahead of the front, valid as long as a record at or behind it was not removed.
  struct Ahead {
    LogRing::Ahead overflow, ring;
  };
  [[nodiscard]] Ahead LookAhead() const { return {overflow_.LookAhead(), ring_.LookAhead()}; }
  // The record at that place before `end`; null if there is none. Moves the place behind it.
  [[nodiscard]] RecordHeader* Next(Ahead& ahead, const Mark& end) const;

  // ---- any thread

  // Whether records are waiting.
  [[nodiscard]] bool HasRecords() const;
  // The number of verdicts so far. Release: they can be read.
  [[nodiscard]] std::uint64_t verdicts() const { return verdicts_.load(std::memory_order_acquire); }

 private:
  [[nodiscard]] StepCode Refused() const;  // see Turn::refusal

  struct OpenStep {
    std::uint64_t step = 0;
    StepRecord* record = nullptr;
  };
  // `open` has room for max_steps_in_flight steps.
  StoreLog(const LogLimits& limits, OpenStep* open, std::span<std::uint8_t> ring,
           PageMemory overflow);

  // Room for records of at most `bytes`; null: they are lost, and a poison record is owed.
  std::uint8_t* Room(std::size_t bytes);
  // Publishes the records, of these sizes, that were written into the last Room(); sizes of 0 are
  // ignored.
  void Append(std::initializer_list<std::size_t> records);
  // Validates `events` and writes their record to `out`, which has room for it, or is null: then
  // they are only validated. `last_seal`: the latest step that a Seal may name. `*bytes` is the
  // size of the record, and is unchanged where none was written.
  [[nodiscard]] StepCode WriteEvents(std::span<const Event> events, std::uint64_t last_seal,
                                     std::uint8_t* out, std::size_t* bytes);
  // The code of a step that is not in (last_, last_ + kMaxStepJump], or not below kStepLimit.
  [[nodiscard]] StepCode CheckStep(std::uint64_t step) const;
  // The latest step that a Seal may name.
  [[nodiscard]] std::uint64_t last_seal() const { return std::max(last_, schedule_); }
  void NoteLoss(Cause cause) {
    if (loss_ == Cause::kNone) loss_ = cause;
  }
  // The step is not open any more: sets its rows, further flags and its verdict.
  [[nodiscard]] StepCode Decide(std::uint64_t step, Verdict verdict, StepRows* rows,
                                std::uint16_t flags = 0);
  // Notes that records are lost, and returns the code of the call.
  [[nodiscard]] StepCode Full();

  const LogLimits limits_;

  // The engine's thread.
  std::atomic<bool> free_{true};  // no call is in progress; false in a forked child
  bool alive_ = true;             // false in a forked child
  LogRing* target_ = nullptr;     // of the last Room()
  bool overflowing_ = false;      // records go to the overflow until all of them are applied
  Cause loss_ = Cause::kNone;     // records were lost, and no poison record stands behind them
  std::uint64_t lost_count_ = 0;
  std::uint64_t last_ = 0;      // the last step told
  std::uint64_t schedule_ = 0;  // the open schedule; 0: none
  std::uint64_t version_ = 0;   // of the latest schedule or step
  OpenStep* const open_;        // the steps that have no verdict
  std::size_t num_open_ = 0;
  std::atomic<std::uint64_t> verdicts_{0};
  std::vector<BlockId> move_blocks_;  // scratch of WriteEvents

  LogRing ring_;
  PageMemory overflow_memory_;
  LogRing overflow_;
  LogRing* front_ = nullptr;  // the ring of Front(); guarded by the store's lock
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_LOG_H_
