// RoutingStore: keeps the routing rows of an engine's KV blocks, from the forward that wrote them
// until the block is bound again or its page is evicted.
//
// There is one store per rank that stores rows. The engine reports what happens to its KV blocks
// (Report, or the events of a batch) and to which slots the rows of each step go (BeginStep), hands
// over the expert ids when they exist (Submit), and takes a Snapshot of a request's blocks when it
// is finished. These calls append records to a log and take effect in their order, on the landing
// thread as a rule: a step when its ids are there, and what was told behind it after it. So nothing
// is ever pending, and what is read is a function of what was told, and never of time.
// docs/internals/architecture.md explains the log and the rules.
//
// Threads: the *engine's thread* (one thread at a time; a second one gets FailedPrecondition) calls
// Schedule, Report, BeginStep, Submit, Drop, Cancel, LoseRows, TakeSnapshot and last_step. The
// *landing thread*, owned by the store, applies the records and copies rows into pages; under
// Landing::kCaller the caller does. Any thread may use a Snapshot and call CoveredPrefix, GetStats,
// TakeFindings and (under Landing::kThread) WaitIdle.
//
// Nothing throws. If a call of StepRows throws, the rows of its step that have not landed are
// missing (not captured). If the store's own work does, see status().
//
// A store and its snapshots belong to the process that created them. In a forked child the calls of
// a store return FailedPrecondition (StepRule::kForked; nothing, zeros or false where there is no
// code), its destructor does nothing, and snapshots that were Ready can be read.
//
// The step path is Schedule, Report, BeginStep, Submit, Drop, Cancel and TakeSnapshot. After
// warm-up they do not allocate; they take no lock, never wait, copy no rows and do not throw. If
// the log is full they return ResourceExhausted (kLogFull), and the store loses its rows
// (capacity); but there is always room for Submit, Drop and Cancel, and TakeSnapshot returns a
// snapshot whose rows are missing (capacity).
//
// Example, where `ids` is a StepRows object with the ids of two rows:
//
//   RoutingShape shape = {.num_layers = 58, .top_k = 8, .num_experts = 256, .page_tokens = 16};
//   auto store = RoutingStore::Create({.shape = shape, .num_blocks = 4096});
//   if (!store.ok()) return store.status();
//
//   // When step 7 is scheduled: block 3 is new, and two rows of KV go to its first two slots.
//   const Event events[] = {Event::Bind(BlockId(3))};
//   const std::int64_t slots[] = {3 * 16 + 0, 3 * 16 + 1};
//   StepBatch batch = {.step = 7, .version = 1};
//   batch.events = events, batch.num_events = 1;
//   batch.slots = slots, batch.num_slots = 2;
//   StepCode code = (*store)->BeginStep(batch);
//
//   // When the ids exist. `ids` must live until its Done() is called.
//   if (code.ok()) code = (*store)->Submit(StepId(7), &ids);
//   if (!code.ok()) return code.ToStatus();
//
//   // When the request is finished, before its blocks are freed.
//   const BlockId blocks[] = {BlockId(3)};
//   auto snapshot = (*store)->TakeSnapshot(blocks, 0, 2);
//   if (!snapshot.ok()) return snapshot.status();
//
//   // On any thread: rows->ids is [2, 58, 8] uint8, rows->infos one RowInfo per row.
//   absl::Status landed = snapshot->Wait(std::chrono::seconds(1));
//   if (!landed.ok()) return landed;
//   auto rows = snapshot->ReadRows();
#ifndef WAYMARK_BLOCKSTORE_STORE_STORE_H_
#define WAYMARK_BLOCKSTORE_STORE_STORE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/step_code.h"
#include "blockstore/store/snapshot.h"
#include "blockstore/store/stats.h"
#include "blockstore/store/step_rows.h"
#include "blockstore/store/store_options.h"
#include "blockstore/timeout.h"

namespace waymark {

class StoreLog;

class RoutingStore {
 public:
  // InvalidArgument naming the field, the rule and the value. ResourceExhausted if the memory
  // cannot be reserved, or the tables would exceed the machine's memory; known before any is
  // touched. Any thread.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<RoutingStore>> Create(
      const StoreOptions& options);
  // Applies the whole log: submitted steps, whose StepRows must still exist, land, and open ones
  // are dropped. Waits for ids at most StoreOptions::teardown_timeout. Snapshots stay readable. On
  // the landing thread (in a call of StepRows or of the log) it does not wait: that thread does the
  // same when the call has returned.
  ~RoutingStore();
  RoutingStore(const RoutingStore&) = delete;
  RoutingStore& operator=(const RoutingStore&) = delete;

  // ---- the step path: the engine's thread ----

  // Opens the schedule of `step` under weights `version`: events and snapshots belong to it until
  // the step is begun. Optional; it is for engines that report events before their step begins and
  // whose weights change, or that schedule ahead: BeginStep of an earlier step is then refused
  // (FailedPrecondition, kScheduleAhead). If a schedule is open whose step was not begun, its own
  // seals are discarded. InvalidArgument unless `step` is greater than every step begun, and not
  // smaller than the open schedule.
  [[nodiscard]] StepCode Schedule(StepId step, std::uint64_t version);
  // Appends events, in their order. They take effect before every record that is appended later. A
  // group of simultaneous Moves is in one call. An invalid event changes nothing. O(events).
  [[nodiscard]] StepCode Report(std::span<const Event> events);
  // Tells a step: its events take effect in their order, then its rows are written, then its own
  // seals are applied: those reported for this step or for the one that is begun next. Call it when
  // the step is scheduled, at the latest when its forward is issued. It waits in the log until one
  // of the next three calls, and its ids; what is told behind it waits with it. An invalid batch
  // changes nothing. If max_steps_in_flight steps are open, the step is dropped at once and
  // StepCode::dropped() is true. O(events + rows).
  [[nodiscard]] StepCode BeginStep(const StepBatch& batch);
  // Hands over the ids of a step, in any order of steps, before or after they exist (see
  // StepRows::Poll). The caller keeps `rows` until its Done() is called; null: its rows are missing
  // (not captured). If the step is not open (NotFound), rows->Done() is called before this returns.
  [[nodiscard]] StepCode Submit(StepId step, StepRows* rows);
  // The forward of the step ran, or may have, but its ids are lost: its rows are missing
  // (capacity). In doubt it is this call. NotFound if the step is not open. `no_room`: its caller
  // keeps the ids of max_steps_in_flight steps, and had no room for these: counted apart.
  [[nodiscard]] StepCode Drop(StepId step, bool no_room = false);
  // The forward of the step did not run: no kernel that writes KV was issued. The step has no
  // effect, and neither have its own seals: report these again with the step that runs.
  // NotFound if the step is not open.
  [[nodiscard]] StepCode Cancel(StepId step);

  // ---- reading: the engine's thread ----

  // Pins rows [first, last) of the sequence whose KV is in `blocks`: block i holds tokens
  // [i * block_tokens, (i + 1) * block_tokens). The rows of null blocks are never written. Does not
  // copy rows or wait; O(pages). InvalidArgument for a range that is negative, reversed or longer
  // than the blocks, and for block ids out of range; ResourceExhausted without memory. While the
  // log is full it pins nothing: the snapshot is ready, and all its rows are missing (capacity).
  // Rows of blocks that are not the request's any more are missing (released), as `owner` says; if
  // it is empty, the rows of blocks without users.
  [[nodiscard]] absl::StatusOr<Snapshot> TakeSnapshot(std::span<const BlockId> blocks,
                                                      std::int64_t first, std::int64_t last,
                                                      const SnapshotOwner& owner = {});
  // The number of leading rows of [0, rows) that are valid, as far as the log was applied: it may
  // be late, and differ from rank to rank. Stops at the end of `blocks`, at a null block and at a
  // block id out of range. O(result), under the store's mutex. Any thread.
  [[nodiscard]] std::int64_t CoveredPrefix(std::span<const BlockId> blocks,
                                           std::int64_t rows) const;

  // ---- lost events: the engine's thread ----

  // Nobody knows what the engine did to its blocks: events were lost on their way to this call, as
  // between two processes, or a forward wrote KV into blocks that are not known. All blocks lose
  // their rows (capacity) and keep their users; snapshots that were taken before stay as they are.
  // It takes effect in its place, like an event: call it before the next step is told, and before
  // what is known is reported again.
  [[nodiscard]] StepCode LoseRows();

  // ---- landing ----

  // Landing::kManual only: applies the oldest `records` records of the log; returns their number.
  std::size_t Apply(std::size_t records);

  // Not Landing::kThread: lands the oldest step that was told and has not landed, and waits for its
  // ids. False if there is none, or it is not submitted, or records before it were not applied.
  bool LandOne();
  // The same, if it is this step.
  bool Land(StepId step);
  // Waits until the whole log has been applied, and StepRows::Done() of its steps was called,
  // except of those whose ids did not come in time. Without a landing thread it lands what is
  // submitted. DeadlineExceeded after `timeout`: a step is open, or its ids have not arrived.
  [[nodiscard]] absl::Status WaitIdle(std::chrono::nanoseconds timeout);

  // ---- state ----

  // OK, or why the store has failed: an exception in its own work, which is no memory as a rule
  // (ResourceExhausted, Internal). It then returns no row of its table any more: rows of later
  // snapshots are missing (capacity), StepRows get their Done(), and CoveredPrefix is 0. The calls
  // of the step path work as before, so that the engine runs on. FailedPrecondition in a forked
  // child. Any thread.
  [[nodiscard]] absl::Status status() const;
  // Whether this process is a forked child of the store's.
  [[nodiscard]] bool forked() const;
  // The counters, as far as the log was applied. Any thread.
  [[nodiscard]] Stats GetStats() const;
  // What the audit has found since the last call, as far as the log was applied: one finding for
  // each cause. Any thread.
  [[nodiscard]] std::vector<AuditFinding> TakeFindings();
  // The same, one for each page, in order; the first 256 of them. What one of the two calls
  // returns, the other does not.
  [[nodiscard]] std::vector<AuditFinding> TakeEachFinding();
  [[nodiscard]] const StoreOptions& options() const;
  // For which step the log waits. Lives as long as somebody keeps it.
  [[nodiscard]] std::shared_ptr<const WaitingStep> waiting_step() const;
  // The last step begun; 0 before the first.
  [[nodiscard]] StepId last_step() const;

  // Internal: for the flight recorder and the store's own tests.
  class Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  static absl::StatusOr<std::unique_ptr<RoutingStore>> Make(const StoreOptions& options);
  explicit RoutingStore(std::shared_ptr<Impl> impl);
  // What follows a call that may have appended records, and one that may have appended an end.
  void Reported(const StepCode& code);
  void Ended(const StepCode& code);

  std::shared_ptr<Impl> impl_;
  // Of impl_, so that a step need not touch the page that it is in.
  StoreLog* log_;
  Landing landing_;
};

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_STORE_STORE_H_
