// CaptureSession: gives every forward of an engine a buffer for the expert ids of its layers, and
// lands the ids in a RoutingStore. One session per model and per rank that stores rows.
//
// BeginStep, at schedule time, takes a buffer for the step in which every id is -1. The forward
// writes the ids of every layer into it. After Submit the store's landing thread checks the rows,
// packs them into pages, and sets the buffer to -1 again. Steps land in the order of their begins;
// if the ids of an earlier step are late, the rows are packed into memory of the store meanwhile
// (StoreOptions::ahead_bytes), and the buffer is free. If a layer was not written, every row of the
// step is missing (not captured), and the layer is counted and logged under its name.
//
// Example, where `batch` is the scheduled step of a model with one MoE layer:
//
//   auto session = CaptureSession::Create({.store = store, .max_rows = 512, .num_buffers = 4});
//   if (!session.ok()) return session.status();
//   absl::Status bound = (*session)->BindLayer(0, "model.layers.1.mlp.gate");
//   if (!bound.ok()) return bound;
//
//   StepCode code = (*session)->BeginStep(batch, padded_rows);       // when it is scheduled
//   const CaptureView view = (*session)->view(StepId(batch.step));
//   route(view);  // the forward: writes expert k of row r to view.layer(l)[r * K + k]
//   if (code.ok()) code = (*session)->Submit(StepId(batch.step));    // or Drop, or Cancel
//
// Threads: all calls come from the engine's thread, the one that calls the store, except GetStats,
// which any thread may call. The layers of a forward may be written by any
// threads, at disjoint addresses, between BeginStep and Submit. No call from SetStream to SubmitIds
// allocates, blocks or throws; only HandOver copies rows.
//
// Sequence parallelism (CaptureOptions::row_gather): each rank's forward has one part of the rows.
// Every rank begins the same steps, of the same rows, in the same order. The batch of a step has
// the rows of all ranks, padding included (slots of -1), so that their number is a multiple of the
// ranks; the view and the ids of rank r have rows [r * n, (r + 1) * n), n of each rank. The ranks
// exchange the packed rows on a thread of the session, one all-gather a step, and every rank's
// store gets all rows. For each step that was begun the collective is called once, also if this
// rank drops or cancels it: its rows are then missing on the other ranks, too (capacity; not
// captured if only this rank cancelled). If a call fails, all rows of its step are missing here
// (not captured). A rank that need not keep rows gives its store one block, and its steps slots of
// -1.
//
// Ownership: the store is not owned and must outlive the session. The session may be destroyed
// while steps are open, which are dropped; submitted ones still land.
#ifndef WAYMARK_PLUGIN_CAPTURE_CAPTURE_SESSION_H_
#define WAYMARK_PLUGIN_CAPTURE_CAPTURE_SESSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/log.h"
#include "blockstore/step_code.h"
#include "blockstore/store/store.h"
#include "plugin/capture/collective.h"
#include "plugin/capture/ids_tensor.h"
#include "plugin/capture/layer_counters.h"
#include "plugin/capture/transport.h"

namespace waymark {

struct CaptureOptions {
  // Required, not owned. Its shape is the session's; E must be at most 32768, since views are
  // int16, unless ids_only.
  RoutingStore* store = nullptr;
  // N_max: the most rows of one forward on this rank, padding included; with data parallelism, of
  // the gathered batch. 1 ... 1048576.
  std::int32_t max_rows = 0;
  // R: how many steps can have a buffer between their begin and the time when the store has read
  // their rows. A step that finds none free is dropped. 1 ... 4096.
  std::int32_t num_buffers = 4;
  // Columns of a tensor of ids behind the K that are captured, e.g. of shared experts: a tensor of
  // another number of columns than K + extra_columns is refused. 0 ... 1048576.
  std::int32_t extra_columns = 0;
  // Steps of BeginIdsStep alone, of which E may be larger: BeginStep is refused.
  bool ids_only = false;
  // Makes the transport. Null: HostTransport.
  TransportFactory transport = {};
  // Sequence parallelism: the ranks that share the rows of each forward, in the order of their
  // rows. Called on a thread of the session ("wm-gather") alone, so it must not be one that the
  // engine calls at the same time; it has a deadline of its own. A call that outlasts
  // teardown_timeout is left behind, and is the last: `context` lives until it has returned, best
  // by Collective::owner. With one rank nothing is exchanged.
  Collective row_gather = {};
  // Called on the landing thread when a layer is silent for the first time, and once if the
  // transport fails (TransportOptions::log). Null: the store's.
  LogCallback log = {};
};

// Counters of one layer.
struct LayerStats {
  std::string module;              // empty if the layer is not bound
  std::int32_t layer_id = 0;       // the model's layer number
  std::uint64_t rows_silent = 0;   // landed rows in which every id of the layer is -1
  std::uint64_t rows_invalid = 0;  // landed rows in which it has another id out of range, or one
                                   // twice
};

// Every counter of a session, once: X(name, what it counts). C has them by these names; the last
// three count CaptureOptions::row_gather.
#define WAYMARK_SESSION_COUNTERS(X)                                       \
  X(steps_begun, "steps that were told")                                  \
  X(steps_submitted, "steps whose ids were handed over")                  \
  X(steps_dropped, "steps dropped: by Drop, or at once for lack of room") \
  X(steps_without_buffer, "of these: no buffer, or the transport failed") \
  X(steps_lost, "steps whose ids were lost: by Lose")                     \
  X(steps_cancelled, "steps that did not run")                            \
  X(discards, "forwards that were no step")                               \
  X(rows_handed_over, "rows copied by HandOver, counted once per layer")  \
  X(gathers, "steps whose rows were exchanged between ranks")             \
  X(gathers_failed, "steps whose all-gather failed")                      \
  X(parts_missing, "parts of other ranks that had no rows, in those exchanged")

// Counters of a session since it was made.
struct CaptureStats {
#define WAYMARK_COUNTER(name, meaning) std::uint64_t name = 0;
  WAYMARK_SESSION_COUNTERS(WAYMARK_COUNTER)
#undef WAYMARK_COUNTER
  std::vector<LayerStats> layers;  // all L, in order
};

class IdsRing;    // internal
class RowGather;  // internal

class CaptureSession {
 public:
  // Allocates everything that the step path uses, and makes the transport. InvalidArgument naming
  // the field, the rule and the value; errors of the transport factory, e.g. ResourceExhausted
  // naming the bytes that could not be allocated.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<CaptureSession>> Create(
      const CaptureOptions& options);
  // Drops the steps that have a buffer and have not ended. Steps of BeginIdsStep that were not
  // submitted stay open in the store, and the caller must end them there. Submitted steps land as
  // if the session still existed. With row_gather it waits until they have been exchanged, at most
  // StoreOptions::teardown_timeout; rows that have not been are missing (not captured).
  ~CaptureSession();
  CaptureSession(const CaptureSession&) = delete;
  CaptureSession& operator=(const CaptureSession&) = delete;

  // ---- before the first step ----

  // Binds captured layer `layer` to the module of the model that routes it, which reports then
  // name. Its ids get into the view by a kernel of the engine, which writes view.layer(layer), or
  // by HandOver. Layers that never route, and draft (MTP) layers, are not among the captured
  // layers. A layer that is not bound is captured all the same, but has no name in reports.
  // InvalidArgument for a layer out of range or an empty name; AlreadyExists if the layer or the
  // module is bound; FailedPrecondition after the first BeginStep.
  [[nodiscard]] absl::Status BindLayer(std::int32_t layer, std::string module);

  // ---- the step path ----

  // Sets the stream on which the engine issues the forwards from now on; for CUDA a cudaStream_t.
  // The default stream until the first call. Host transports ignore it. From one step to the next
  // the session orders the streams. If the stream changes between the begin of a step and its end,
  // the engine must: the new stream must wait for what was issued on the old one. A stream is valid
  // until the call that replaces it has returned.
  void SetStream(void* stream);

  // Begins the step in the store (RoutingStore::BeginStep, whose rules hold) and takes a buffer for
  // its forward. `written_rows`: how many rows the forward writes, padding of CUDA graphs included;
  // the session uses the larger of it and the number of slots of the batch, so 0 stands for that
  // number.
  //
  // If no buffer is free, or the transport has failed, the step is begun and dropped at once: the
  // code is dropped(), and view(step) is the scratch view, so that the forward can run unchanged.
  // InvalidArgument (kTooManyRows) if written_rows or the number of slots exceeds max_rows; nothing
  // has happened. With row_gather the number of slots on each rank counts, and InvalidArgument
  // (kRankRows) is returned if it is no integer.
  [[nodiscard]] StepCode BeginStep(const StepBatch& batch, std::int32_t written_rows = 0);
  // The view into which the forward of `step` writes, valid until the step is submitted, dropped or
  // cancelled. For a step without a buffer (dropped at its begin, ended, or unknown) it is the
  // scratch view. Always safe to write max_rows rows into. For a step above the last one begun,
  // HandOver refuses it.
  [[nodiscard]] CaptureView view(StepId step);
  // The view for forwards that are not steps: warm-up, autotuning, dummy batches. Its ids never
  // land. Call Discard after each such forward.
  [[nodiscard]] CaptureView scratch_view();

  // Copies the first K columns of `ids` into the ids.rows rows of `layer` of the view from
  // ids.first_row on, in stream order on a device: micro-batches of one step hand over their rows
  // one after the other, in any order. `view` is view(step) or scratch_view(). For a device,
  // `ids.data` is device memory, which is read in stream order. Takes int16, int32 and int64
  // (kIdsType). On failure nothing is copied. NotFound (kStepNotInFlight) for a view whose step has
  // ended, or was not begun.
  [[nodiscard]] StepCode HandOver(const CaptureView& view, std::int32_t layer, const StepIds& ids);

  // Ends `step`: its forward has written the view, or on a device has been issued. Its rows land.
  // Before the buffer is used again, all rows that the forward may have written are set to -1.
  // `written_rows`: as in BeginStep, for callers that did not know it then; the larger of the two
  // counts. NotFound (kStepNotInFlight) if the step has no buffer here, and InvalidArgument
  // (kTooManyRows) for rows beyond max_rows; nothing has happened.
  [[nodiscard]] StepCode Submit(StepId step, std::int32_t written_rows = 0);
  // Ends `step`, whose forward ran, or may have, without ids: its rows are missing (capacity). In
  // doubt it is this call. Also ends steps of BeginIdsStep. If BeginStep was not told written_rows,
  // all rows of the view are set to -1 before its next step. `no_room`: of RoutingStore::Drop.
  [[nodiscard]] StepCode Drop(StepId step, bool no_room = false);
  // Ends `step`, whose forward ran, or may have, and whose ids are lost: as Drop, but its rows are
  // missing (not captured).
  [[nodiscard]] StepCode Lose(StepId step);
  // Ends `step`, which did not run: no kernel that writes KV was issued. It has no effect, and its
  // own seals have none: report them again with the step that runs. Otherwise as Drop.
  [[nodiscard]] StepCode Cancel(StepId step);
  // Sets rows [0, written_rows) of the scratch view to -1, after a forward that was not a step.
  // `written_rows` is clamped to [0, max_rows].
  void Discard(std::int32_t written_rows);

  // Begins a step without a buffer, for engines that have the ids of all layers in one tensor in
  // host-readable memory. Its rows are read from that tensor when they land; the transport is not
  // used. End it by SubmitIds, Drop or Cancel.
  [[nodiscard]] StepCode BeginIdsStep(const StepBatch& batch);
  // Ends `step` with the ids in `ids`: row i of the tensor is row i of the step (with row_gather,
  // of this rank's rows, and ids.rows is at most their number). Rows of the step beyond ids.rows
  // are missing (not captured). A step of BeginStep may end so too, if its view was not written.
  // The tensor stays the caller's
  // and must not change until `done` is called, which happens exactly once: on success when the
  // store has read it (the step has landed, was fetched, or was lost), else before the return.
  // StepCode::dropped() (kRingFull): the tensors of max_steps_in_flight steps have not been read
  // yet, so this step was dropped: it has ended, and its rows are missing (capacity). After any
  // other failure the step is still open.
  [[nodiscard]] StepCode SubmitIds(StepId step, const StepIds& ids, DoneCallback done = {});

  // ---- reports and accessors ----

  // The counters. Allocates.
  [[nodiscard]] CaptureStats GetStats() const;
  // OK, or why the transport or the gather of rows (4096 steps waited for the collective) has
  // failed for good. After a failure every step is dropped at its begin.
  [[nodiscard]] absl::Status status() const;

  [[nodiscard]] const RoutingShape& shape() const { return shape_; }
  [[nodiscard]] std::int32_t max_rows() const { return max_rows_; }
  [[nodiscard]] std::int32_t extra_columns() const { return columns_ - shape_.top_k; }
  // One per captured layer, in order; the module of a layer without a name is empty.
  [[nodiscard]] const std::vector<std::string>& modules() const { return counters_->modules(); }
  [[nodiscard]] Transport& transport() { return *transport_; }

 private:
  // A counter that one thread moves and any thread reads: no atomic addition is needed.
  class Counter {
   public:
    void Add(std::uint64_t n = 1) {
      value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

   private:
    std::atomic<std::uint64_t> value_{0};
  };
  // A step that was begun, has a buffer, and has not ended.
  struct Open {
    std::uint64_t step = 0;         // 0: none; the buffer is free, or its rows have not landed yet
    std::int32_t rows = 0;          // of this rank
    std::int32_t written_rows = 0;  // rows [0, written_rows) are written, as the engine said
    bool counted = false;           // the engine said at the begin how many rows are written
  };

  CaptureSession() = default;
  // The buffer of `step`; kNoBuffer if it has none: not begun, dropped at its begin, ended, or of
  // BeginIdsStep.
  [[nodiscard]] BufferId Find(StepId step);
  [[nodiscard]] Open& OpenOf(BufferId buffer) { return open_[static_cast<std::size_t>(buffer)]; }
  // Gives the buffer of `step`, if it has one, back without landing it. The step goes on. The
  // forward may have written all rows if nothing was said of them, unless it was `unwritten`.
  void ReleaseBuffer(StepId step, bool unwritten = false);
  // Sets `rows` to how many of a batch's `num_rows` rows this rank has: all without a gather,
  // else an equal part. Refuses a number that is no multiple of the ranks, and more rows than the
  // gather has room for: a store whose log is full does not look at them.
  StepCode SplitRows(std::size_t num_rows, std::size_t& rows) const;
  // Begins a step in the store and, with a gather, its exchange. `room`: the caller has a buffer
  // for it, or it needs none. Without room, or memory for the rows of all ranks, it is dropped by
  // the record that begins it: the store answers dropped(), and the other ranks get no rows from
  // this one. Any other failure: nothing has begun. `rows`: of SplitRows.
  StepCode Begin(const StepBatch& batch, std::size_t rows, bool room);
  // What the store gets for `local`, the rows of this rank: with a gather, the rows of all.
  [[nodiscard]] StepRows* OfAllRanks(StepId step, StepRows* local);
  // The rules that the tensors of HandOver and SubmitIds share: rows that end within most_rows, an
  // address if there are rows, the columns, and a type that holds the experts.
  [[nodiscard]] StepCode CheckIds(const StepIds& ids, std::int32_t most_rows) const;

  // Everything is of the engine's thread. GetStats, on any thread, reads the Counters, the names of
  // the modules, which do not change after the first step, and the layer counters and the gather,
  // which allow it.
  RoutingStore* store_ = nullptr;  // not owned
  RoutingShape shape_;
  std::int32_t max_rows_ = 0;                // of a view, padding included; of this rank
  bool ids_only_ = false;                    // of CaptureOptions
  std::int32_t columns_ = 0;                 // of a tensor: K + extra_columns
  std::int32_t max_ids_rows_ = 0;            // of a tensor of SubmitIds
  std::size_t max_step_rows_ = 0;            // of a step, in the store
  std::shared_ptr<LayerCounters> counters_;  // what landing finds; the transport and the ring add
  std::shared_ptr<Transport> transport_;     // the buffers of steps of BeginStep
  std::shared_ptr<IdsRing> ids_ring_;        // the tensors of SubmitIds that have not landed
  std::shared_ptr<RowGather> gather_;        // null: this rank has all rows
  std::vector<Open> open_;                   // [num_buffers], by BufferId
  std::size_t last_found_ = 0;    // of `open_`: engines ask for the same step again and again
  std::uint64_t last_begun_ = 0;  // the last step begun, dropped ones included; steps increase
  Counter begun_, submitted_, dropped_, lost_, cancelled_, overflows_, discards_, handed_over_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_CAPTURE_SESSION_H_
