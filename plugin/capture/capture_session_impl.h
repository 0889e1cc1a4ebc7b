// CaptureSession::Impl: what a session has, and the steps that it has open. Included by
// capture_session.cc only.
//
// Everything is of the engine's thread. GetStats, on any thread, reads the Counters, the bindings,
// which do not change after the first step, and the layer counters and the gather, which allow it.
#ifndef WAYMARK_PLUGIN_CAPTURE_CAPTURE_SESSION_IMPL_H_
#define WAYMARK_PLUGIN_CAPTURE_CAPTURE_SESSION_IMPL_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/capture/capture_session.h"
#include "plugin/capture/ids_ring.h"
#include "plugin/capture/row_gather.h"

namespace waymark {

// The codes of absl::Status that StepCode and CaptureCode have, as their numbers.
inline constexpr std::int32_t kInvalidArgument =
    static_cast<std::int32_t>(absl::StatusCode::kInvalidArgument);
inline constexpr std::int32_t kFailedPrecondition =
    static_cast<std::int32_t>(absl::StatusCode::kFailedPrecondition);
inline constexpr std::int32_t kResourceExhausted =
    static_cast<std::int32_t>(absl::StatusCode::kResourceExhausted);
inline constexpr std::int32_t kNotFound = static_cast<std::int32_t>(absl::StatusCode::kNotFound);

class CaptureSession::Impl {
 public:
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

  RoutingStore* store = nullptr;  // not owned
  RoutingShape shape;
  std::int32_t max_rows = 0;                // of a view, padding included; of this rank
  bool ids_only = false;                    // of CaptureOptions
  std::int32_t max_ids_rows = 0;            // of a tensor of SubmitIds
  std::size_t max_step_rows = 0;            // of a step, in the store
  std::shared_ptr<LayerCounters> counters;  // what landing finds; the transport and the ring add
  std::shared_ptr<Transport> transport;     // the buffers of steps of BeginStep
  std::shared_ptr<IdsRing> ids_ring;        // the tensors of SubmitIds that have not landed
  std::shared_ptr<RowGather> gather;        // null: this rank has all rows
  std::vector<LayerBinding> bindings;       // [L]; an unbound layer has no module

  // A step that was begun, has a buffer, and has not ended.
  struct Open {
    std::uint64_t step = 0;         // 0: none; the buffer is free, or its rows have not landed yet
    std::int32_t rows = 0;          // of this rank; 0 with device_slots
    std::int32_t written_rows = 0;  // rows [0, written_rows) are written, as the engine said
    bool device_slots = false;      // how many rows it has is known at its end
    bool counted = false;           // the engine said at the begin how many rows are written
  };
  std::vector<Open> open;        // [num_buffers], by BufferId
  std::size_t last_found = 0;    // of `open`: engines ask for the same step again and again
  std::uint64_t last_begun = 0;  // the last step begun, dropped ones included; steps increase

  // Those of CaptureStats; overflows: ring_overflows, handed_over: rows_handed_over.
  Counter begun, submitted, dropped, cancelled, overflows, discards, handed_over;

  // The buffer of `step`; kNoBuffer if it has none: not begun, dropped at its begin, ended, or of
  // BeginIdsStep.
  BufferId Find(StepId step) {
    if (step.value() == 0) return kNoBuffer;
    if (open[last_found].step == step.value()) return static_cast<BufferId>(last_found);
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].step == step.value()) {
        last_found = i;
        return static_cast<BufferId>(i);
      }
    }
    return kNoBuffer;
  }

  // Gives the buffer of `step`, if it has one, back without landing it. The step goes on. The
  // forward may have written all rows if nothing was said of them, unless it was `unwritten`.
  void ReleaseBuffer(StepId step, bool unwritten = false) {
    const BufferId buffer = Find(step);
    if (buffer == kNoBuffer) return;
    Open& entry = open[static_cast<std::size_t>(buffer)];
    const bool all = !entry.counted && !unwritten;
    transport->Release(buffer, all ? max_rows : entry.written_rows);
    entry = {};
  }

  // Ends `step` with rows [0, rows) of its buffer. `slots`: of each row, with
  // device_slots, else null (Transport::Seal). kTooManyRows beyond max_rows; nothing has happened.
  // After any other answer the buffer is no longer the step's: the store ends the use of what Seal
  // returned also when it refuses it. Rows [0, written) are set to -1 before the buffer is used
  // again: what the engine said at the begin, here, or by Wrote; all of them with device_slots if
  // it said nothing at either end.
  // REQUIRES: buffer == Find(step), which is not kNoBuffer; 0 <= rows <= max_rows.
  StepCode Submit(StepId step, BufferId buffer, const std::int64_t* slots, std::int32_t rows,
                  std::int32_t written_rows) {
    if (written_rows < 0 || written_rows > max_rows) {
      return {kInvalidArgument, StepRule::kTooManyRows, 0, written_rows};
    }
    Open& entry = open[static_cast<std::size_t>(buffer)];
    const std::int32_t said = std::max({entry.written_rows, written_rows, rows});
    const bool counted = !entry.device_slots || entry.counted || written_rows != 0;
    const std::int32_t written = counted ? said : max_rows;
    entry = {};
    const StepCode code =
        store->Submit(step, OfAllRanks(step, transport->Seal(buffer, rows, written, slots)));
    if (code.ok()) submitted.Add();
    return code;
  }

  // The store has begun `step`, or begun and dropped it.
  void Begun(std::uint64_t step) {
    last_begun = step;
    begun.Add();
  }

  // Sets `rows` to how many of the batch's `num_rows` rows this rank has: all without a gather,
  // else an equal part. Refuses device_slots, a number that is no multiple of the ranks, and more
  // rows than the gather has room for: a store whose log is full does not look at them.
  StepCode SplitRows(const StepBatch& batch, std::size_t num_rows, std::size_t& rows) const {
    rows = num_rows;
    if (gather == nullptr) return {};
    if (batch.device_slots) {
      return {kInvalidArgument, StepRule::kDeviceSlots, 0, static_cast<std::int64_t>(num_rows)};
    }
    const auto ranks = static_cast<std::size_t>(gather->ranks());
    rows = num_rows / ranks;
    if (num_rows % ranks != 0) {
      return {kInvalidArgument, StepRule::kRankRows, ranks, static_cast<std::int64_t>(num_rows)};
    }
    if (num_rows <= max_step_rows) return {};
    return {kInvalidArgument, StepRule::kTooManyRows, 0, static_cast<std::int64_t>(num_rows)};
  }

  // Begins a step in the store and, with a gather, its exchange. `room`: the caller has a buffer
  // for it, or it needs none. Without room, or memory for the rows of all ranks, it is dropped by
  // the record that begins it: the store answers dropped(), and the other ranks get no rows from
  // this one. Any other failure: nothing has begun. `rows`: of SplitRows.
  StepCode Begin(const StepBatch& batch, std::size_t rows, bool room) {
    RowGather::Gathered* memory = nullptr;
    const bool gathers = gather != nullptr && gather->Ready();
    if (gathers && room) memory = gather->Take();
    if (gather != nullptr && room && memory == nullptr) overflows.Add();
    StepCode code;
    if (room && (gather == nullptr || memory != nullptr)) {
      code = store->BeginStep(batch);
    } else {
      StepBatch without_room = batch;
      without_room.drop = true;
      code = store->BeginStep(without_room);
    }
    if (!code.ok() && memory != nullptr) {
      gather->GiveBack(memory);
      memory = nullptr;
    }
    if (!code.ok() && !code.dropped()) return code;
    if (gathers) {
      gather->Begin(StepId(batch.step), batch.version, static_cast<std::int32_t>(rows), memory);
    }
    Begun(batch.step);
    return code;
  }

  // What the store gets for `local`, the rows of this rank: with a gather, those of all ranks.
  StepRows* OfAllRanks(StepId step, StepRows* local) {
    if (gather == nullptr || gather->OpenRows(step) < 0) return local;
    return gather->Submit(step, local);
  }
  // Other ranks are told that `step` has no rows here.
  void EndGather(StepId step, Reason why) {
    if (gather != nullptr) gather->End(step, why);
  }

  // Whether `view` may be written: the scratch view, unless it stands for a step that was not
  // begun, or the view of a step that is open. A view that outlived its step must not write into
  // the step that has the buffer now.
  [[nodiscard]] bool MayWrite(const CaptureView& view) const {
    if (view.buffer == kScratchBuffer) return view.step <= last_begun;
    const auto buffer = static_cast<std::size_t>(view.buffer);
    return view.step != 0 && buffer < open.size() && open[buffer].step == view.step;
  }
  // Rows [0, rows) of `view` are written, or about to be, on the device in stream order. REQUIRES:
  // MayWrite(view).
  void Wrote(const CaptureView& view, std::int32_t rows) {
    if (view.buffer == kScratchBuffer) return;
    Open& entry = open[static_cast<std::size_t>(view.buffer)];
    entry.written_rows = std::max(entry.written_rows, rows);
  }

  // The rules that the tensors of HandOver and SubmitIds share: 0 <= rows <= most_rows, an address
  // if there are rows, and at least K columns.
  CaptureCode CheckIds(const void* data, std::int32_t rows, std::int32_t most_rows,
                       std::int32_t columns) const {
    if (rows < 0 || rows > most_rows) {
      return {kInvalidArgument, CaptureRule::kTooManyRows, rows, most_rows};
    }
    if (rows > 0 && data == nullptr) return {kInvalidArgument, CaptureRule::kNullData, rows, 0};
    if (columns < shape.top_k) {
      return {kInvalidArgument, CaptureRule::kTooFewColumns, columns, shape.top_k};
    }
    return {};
  }
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_CAPTURE_SESSION_IMPL_H_
