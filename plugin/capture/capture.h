// Capture: what an engine calls, ten calls in all. One per model and rank that stores rows.
//
//   events       the engine's block events, in its order: Report({Event::Bind(BlockId(3)), ...}),
//                where Event has Bind, Retain, Release, Seal, Copy, Move, Truncate and Reset
//   a step       Step: which rows the forward wrote, and the ids that its routers chose
//   rows         Take, when a request has finished and before its blocks are released
//
// A scheduler in another process sends its events with the schedule, as plain data: they are
// reported here in its order, when the worker begins that schedule.
//
// Example, where `ids` is the address of an int32 [rows, L, K] array that the forward wrote:
//
//   auto capture = Capture::Create({.store = {.shape = shape, .num_blocks = 4096}});
//   if (!capture.ok()) return capture.status();
//
//   const Event events[] = {Event::Bind(BlockId(3))};                 // block 3 is allocated
//   StepCode code = (*capture)->Report(events);
//   const std::int64_t slots[] = {3 * 16 + 0, 3 * 16 + 1};            // two rows of KV
//   StepBatch batch = {.step = 1, .version = 1, .slots = slots, .num_slots = 2};
//   const StepIds given = StepIds::TokenMajor(ids, IdType::kInt32, 2, shape);
//   if (code.ok()) code = (*capture)->Step(batch, &given);            // after the forward
//   if (!code.ok()) return code.ToStatus();
//
//   const BlockId blocks[] = {BlockId(3)};
//   auto taken = (*capture)->Take(blocks, 0, 2);                      // the request has finished
//   if (!taken.ok()) return taken.status();
//   if (absl::Status read = taken->Wait(std::chrono::seconds(5)); !read.ok()) return read;
//   std::shared_ptr<const Rows> rows = *taken->rows();  // ids [2, L, K] uint8, one info a row
//
// Engines whose kernels write a buffer inside CUDA graphs capture by a CaptureSession of store()
// (capture_session.h); all other calls are the same.
//
// Threads: the engine's thread, one at a time. No call but WaitIdle waits for the device or for the
// store's own thread. Nothing throws.
#ifndef WAYMARK_PLUGIN_CAPTURE_CAPTURE_H_
#define WAYMARK_PLUGIN_CAPTURE_CAPTURE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/step_code.h"
#include "blockstore/store/store.h"
#include "blockstore/wire/tier.h"
#include "plugin/capture/capture_session.h"
#include "plugin/capture/collective.h"
#include "plugin/capture/row_reader.h"

namespace waymark {

class Capture {
 public:
  struct Options {
    StoreOptions store;
    // Sequence parallelism: the ranks that share the rows of each forward (CaptureSession). A step
    // then has the rows of all ranks, and its ids are this rank's.
    Collective row_gather = {};
    // Named in the line of the log that says that the capture is on (level info). nullopt: its
    // adapter says it, and there is no such line.
    std::optional<std::string> engine = std::string();
    // Where the rows of KV that comes from elsewhere are found by key, and sealed pages are put;
    // `get` null: nowhere. Its log and CPUs are the store's if it has none.
    wire::TierOptions tier = {};
    // CaptureOptions::extra_columns, of the ids of steps.
    std::int32_t extra_columns = 0;
  };
  // InvalidArgument naming the field, the rule and the value; errors of RoutingStore::Create and
  // CaptureSession::Create.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Capture>> Create(const Options& options);
  // The store ends (RoutingStore), then what was taken is read. Legal on any thread, also in a
  // callback on one of its own (of a TakenRows, of a step, of a source, of the log, a collective):
  // there it does not wait for that thread, which ends when it has done what is left.
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Names the module of captured layer `layer`, for reports; before the first step. Errors of
  // CaptureSession::BindLayer.
  [[nodiscard]] absl::Status NameLayer(std::int32_t layer, std::string name) {
    return session_->BindLayer(layer, std::move(name));
  }

  // ---- the step path

  // Reports events, in their order: RoutingStore::Report.
  [[nodiscard]] StepCode Report(std::span<const Event> events) { return store_->Report(events); }
  // Events were lost: RoutingStore::LoseRows.
  [[nodiscard]] StepCode LoseRows() { return store_->LoseRows(); }

  // A whole step, told after its forward was issued, and before the next events: its rows are
  // `batch`'s, and row i of `ids` has the ids of row i of the batch. `ids` null: they are
  // lost, and the rows are missing (not captured). The memory of `ids` must not change until `done`
  // is called, once: when it has been read, or before the return if it will not be. Eight ids,
  // spread over rows and layers, are summed here and again behind each 64 rows that are read: if
  // they differ, these rows and those that are read later are missing (not captured), and the log
  // says so. Not noticed: other ids that changed, equal sums, rows that were read before.
  // `batch.version` names weights: one number, the same weights, whenever it comes; it may fall.
  // Errors: RoutingStore::BeginStep's, and nothing has happened; dropped(): there is no room
  // for one more step, whose rows are missing (capacity). If the ids themselves are refused (their
  // layers, columns, type), the step is told, its rows are missing (not captured), and `*refused`
  // says why, if not null.
  [[nodiscard]] StepCode Step(const StepBatch& batch, const StepIds* ids, DoneCallback done = {},
                              StepCode* refused = nullptr);
  // The same in two calls, where other steps are told before the ids of this one exist: Tell when
  // the forward is issued, then one of the others, in any order of steps. What is told behind the
  // step waits for it.
  [[nodiscard]] StepCode Tell(const StepBatch& batch) { return session_->BeginIdsStep(batch); }
  [[nodiscard]] StepCode SetIds(StepId step, const StepIds& ids, DoneCallback done = {}) {
    return session_->SubmitIds(step, ids, done);
  }
  // The forward ran, or may have, and its ids are lost (it threw): the rows are missing (not
  // captured). In doubt it is this call. NotFound if the step is not open.
  [[nodiscard]] StepCode Lose(StepId step) { return session_->Lose(step); }
  // No kernel that writes KV was issued: the step has no effect (CaptureSession::Cancel).
  [[nodiscard]] StepCode NotRun(StepId step) { return session_->Cancel(step); }

  // ---- rows

  // Takes rows [first, last) of the sequence whose KV is in `blocks` (RoutingStore::TakeSnapshot,
  // whose errors it has), before these are released, or later with an `owner` that tells them from
  // rows of others; blocks behind those rows are not looked at. Returns at once; the rows are read
  // on a thread of the library. With a tier, rows that no step wrote are found by owner.keys, and
  // come a little later; `version`: RowKeys::version.
  [[nodiscard]] absl::StatusOr<TakenRows> Take(std::span<const BlockId> blocks, std::int64_t first,
                                               std::int64_t last, const SnapshotOwner& owner = {},
                                               std::uint64_t version = 0);
  // Names the weights of a version for other processes (wire::Tier), before its first step. OK
  // without a tier. Any thread.
  [[nodiscard]] absl::Status NameWeights(std::uint64_t version, std::string_view name) {
    return tier_ != nullptr ? tier_->NameWeights(version, name) : absl::OkStatus();
  }

  // Waits until every step told so far has ended, and the rows taken so far have been read, so that
  // only blocks in use hold pages; a loop whose forward takes no time calls it. Rows by key may
  // come later. DeadlineExceeded after `timeout`; RoutingStore::WaitIdle's errors. Engine's thread.
  [[nodiscard]] absl::Status WaitIdle(std::chrono::nanoseconds timeout) const;

  // ---- what it is made of

  [[nodiscard]] RoutingStore& store() { return *store_; }
  [[nodiscard]] const RoutingStore& store() const { return *store_; }
  // Null without Options::tier.
  [[nodiscard]] const wire::Tier* tier() const { return tier_.get(); }
  // Counters of steps and layers: GetStats, status. It has the steps of this
  // object.
  [[nodiscard]] const CaptureSession& session() const { return *session_; }

 private:
  Capture(const Options& options, std::shared_ptr<wire::Tier> tier);
  void LogStart(const std::string& engine) const;

  std::shared_ptr<wire::Tier> tier_;  // null: none; the reader's and the store's, too
  RowReader reader_;                  // outlives the store
  std::unique_ptr<RoutingStore> store_;
  std::unique_ptr<CaptureSession> session_;  // of steps whose ids come in one tensor
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_CAPTURE_H_
