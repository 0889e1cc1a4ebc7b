// CaptureSession: joins an engine's forwards to a RoutingStore. One a model and a rank that stores.
//
// A step is begun when it is scheduled; the session then has a buffer for what its forward routes,
// all -1. The forward writes the ids of every layer into it, the step is submitted, and the store's
// landing thread checks the rows, packs them into pages, and makes the buffer -1 again. A layer
// that did not write shows as a missing row (not captured), in every step, and is counted under its
// name.
//
// Example, where `batch` is the step at hand, of a model with one MoE layer:
//
//   auto session = CaptureSession::Create({.store = store, .max_rows = 512, .num_buffers = 4});
//   if (!session.ok()) return session.status();
//   absl::Status bound = (*session)->BindLayer(0, "model.layers.1.mlp.gate",
//                                              LayerSource::kKernelWritesView);
//   if (!bound.ok()) return bound;
//
//   StepCode code = (*session)->BeginStep(batch, padded_rows);       // when it is scheduled
//   const CaptureView view = (*session)->view(StepId(batch.step));
//   route(view);  // the forward: writes expert k of row r to view.layer(l)[r * K + k]
//   if (code.ok()) code = (*session)->Submit(StepId(batch.step));    // or Drop, or Cancel
//
// Threads: the engine's thread (the store's) calls everything but GetStats and SilentLayers, which
// any thread may call. Layer kernels may write disjoint parts of a view from any thread between
// BeginStep and Submit. From BeginStep to Discard nothing allocates after Create, waits, throws, or
// copies rows, hand-over excepted.
//
// Ownership: the store is the caller's and must outlive the session. The session may be destroyed
// with steps in flight: open ones are dropped, submitted ones still land.
#ifndef WAYMARK_PLUGIN_CAPTURE_CAPTURE_SESSION_H_
#define WAYMARK_PLUGIN_CAPTURE_CAPTURE_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/events.h"
#include "blockstore/ids.h"
#include "blockstore/log.h"
#include "blockstore/step_code.h"
#include "blockstore/store/store.h"
#include "plugin/capture/capture_code.h"
#include "plugin/capture/ids_row_source.h"
#include "plugin/capture/ids_tensor.h"
#include "plugin/capture/transport.h"

namespace waymark {

// How the ids of a layer come into the view.
enum class LayerSource : std::uint8_t {
  kKernelWritesView,  // the engine's kernel writes view.layer(l)
  kHandsOver,         // the engine hands its topk_ids over (HandOver)
  kRoutingKernel,  // Waymark's own routing kernel chooses the experts, and the engine uses its ids
};
// "kernel writes the view", "hands over", "routing kernel". Static storage.
[[nodiscard]] std::string_view LayerSourceName(LayerSource source);

// A captured layer and the module of the model that routes it.
struct LayerBinding {
  std::int32_t layer = -1;  // captured layer, in [0, L)
  std::string module;       // the module's name in the model; names the layer in every report
  LayerSource source = LayerSource::kKernelWritesView;
};

struct CaptureOptions {
  RoutingStore* store = nullptr;  // required; gives the shape; E <= 32768
  // Rows of the longest forward, padding included (N_max); with data parallelism the gathered
  // maximum. 1 ... 1048576.
  std::int32_t max_rows = 0;
  // Steps begun and not landed that can have a buffer (R); one more is dropped. 1 ... 4096.
  std::int32_t num_buffers = 4;
  // Steps of SubmitIds that can be on their way. 0 = the store's max_steps_in_flight.
  std::int32_t num_ids_sources = 0;
  // Layers bound at once, as by BindLayer.
  std::vector<LayerBinding> layers = {};
  // Null: HostTransport.
  TransportFactory transport = {};
  // Hears the first silence of each layer, from whoever lands, and why the transport has failed
  // (TransportOptions::log).
  LogCallback log = {};
};

// What is counted of one layer.
struct LayerStats {
  LayerBinding binding;            // module is empty when the layer was never bound
  std::int32_t layer_id = 0;       // the model's layer number
  std::uint64_t rows_silent = 0;   // landed rows in which the layer had an id of -1
  std::uint64_t rows_invalid = 0;  // landed rows in which it had an id out of range, or repeated
};

// What a session has counted since it was made.
struct CaptureStats {
  std::uint64_t steps_begun = 0;  // accepted by the store, those that overflowed included
  std::uint64_t steps_submitted = 0;
  std::uint64_t steps_dropped = 0;  // by Drop and by teardown
  std::uint64_t steps_cancelled = 0;
  std::uint64_t ring_overflows = 0;  // steps dropped at their begin for want of a buffer
  std::uint64_t discards = 0;
  std::uint64_t rows_handed_over = 0;  // rows x layers copied by HandOver
  std::vector<LayerStats> layers;      // all L, in order

  // The totals, and a line for each layer with a silent or invalid row.
  [[nodiscard]] std::string ToString() const;
};

// A layer that was silent in at least one landed row.
struct SilentLayer {
  std::int32_t layer = -1;
  std::int32_t layer_id = 0;
  std::string module;
  std::uint64_t rows = 0;
  // Rows, padding included, of the forwards in which it was silent; ascending.
  std::vector<std::int32_t> batch_sizes;

  // e.g. "layer 12 (model.layers.13.mlp): silent in 512 rows, at batch sizes 256, 512". Allocates.
  [[nodiscard]] std::string ToString() const;
};

class CaptureSession {
 public:
  // InvalidArgument naming field, rule and value; ResourceExhausted when memory cannot be had.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<CaptureSession>> Create(
      const CaptureOptions& options);
  // Drops the steps that have a buffer here and have not ended; those of BeginIdsStep are the
  // caller's to end. Submitted ones land as if the session lived.
  ~CaptureSession();
  CaptureSession(const CaptureSession&) = delete;
  CaptureSession& operator=(const CaptureSession&) = delete;

  // ---- before the first step ----

  // Says which module of the model captured layer `layer` is, and how its ids come. Layers that
  // never route, and draft (MTP) layers, are not captured layers and are never bound. A layer that
  // nobody binds is captured if somebody writes its view, and has no name in reports.
  // InvalidArgument: layer out of range, empty name. AlreadyExists: the layer or the module is
  // bound. FailedPrecondition: a step was begun.
  [[nodiscard]] absl::Status BindLayer(std::int32_t layer, std::string module, LayerSource source);

  // ---- the step path ----

  // The device's stream on which the engine issues the forwards from here on, for transports that
  // have a device (Transport::SetStream); the default one until it is called.
  void SetStream(void* stream);

  // RoutingStore::BeginStep, and a buffer for the step's forward. `written_rows`: how many rows the
  // forward writes, graph padding included; fewer than the batch has slots (0 by default) means as
  // many as slots. When no buffer is free the step is dropped here and now: StepCode::dropped(),
  // counted, and view(step) is the scratch view, so that the forward can run as ever.
  // InvalidArgument (too many rows): slots (not those of device_slots) or written_rows > max_rows;
  // nothing was done.
  [[nodiscard]] StepCode BeginStep(const StepBatch& batch, std::int32_t written_rows = 0);
  // Where the forward of `step` writes. The scratch view for a step that has no buffer (dropped at
  // its begin, ended, or unknown): always safe to write max_rows rows into.
  [[nodiscard]] CaptureView view(StepId step);
  // Where forwards write that are no step: warm-up, autotuning, dummy batches. Nothing in it lands.
  [[nodiscard]] CaptureView scratch_view();

  // Copies the first K columns of `ids` into rows [0, ids.rows) of `layer` of the view. For layers
  // bound as LayerSource::kHandsOver. `view` is one of view(step) and scratch_view(). For a step
  // without a buffer the ids go to the scratch buffer.
  [[nodiscard]] CaptureCode HandOver(const CaptureView& view, std::int32_t layer,
                                     const IdsTensor& ids);
  [[nodiscard]] CaptureCode HandOver(StepId step, std::int32_t layer, const IdsTensor& ids);

  // The forward of `step` has written its view (or, on a device, has been issued). Its rows land;
  // every row it may have written is -1 again before the buffer's next use. `written_rows`: as in
  // BeginStep, where it was not known yet; the larger of the two counts. NotFound (step not in
  // flight): the step has no buffer here; nothing was done.
  [[nodiscard]] StepCode Submit(StepId step, std::int32_t written_rows = 0);
  // Ends a step begun with StepBatch::device_slots, as Submit ends any other: row i of the view
  // lies at slots[i], kPaddingSlot for a row of no block. `slots`: [rows] in the transport's memory
  // (the device's, for a device), read in stream order with the forward: what is enqueued later may
  // write over them. `rows`: at most max_rows. InvalidArgument (device slots): the step was begun
  // without, `slots` is null or not at a multiple of 8, or Submit was called for a step that was
  // begun with them.
  [[nodiscard]] StepCode SubmitDeviceSlots(StepId step, const std::int64_t* slots,
                                           std::int32_t rows, std::int32_t written_rows = 0);
  // The ids of `step` will not come: its rows are missing (capacity). Also for a step of
  // BeginIdsStep.
  [[nodiscard]] StepCode Drop(StepId step);
  // The forward of `step` did not run: its claims are revoked. Also for a step of BeginIdsStep.
  [[nodiscard]] StepCode Cancel(StepId step);
  // A forward that was no step has written rows [0, written_rows) of the scratch view: -1 again.
  void Discard(std::int32_t written_rows);

  // For engines that have the ids of all layers in one tensor, in memory that the host can read,
  // whatever the transport: no buffer is taken and no row copied before landing. Not for
  // device_slots.
  [[nodiscard]] StepCode BeginIdsStep(const StepBatch& batch);
  // The ids of `step`, which the caller keeps, unchanged, until `done` is called: exactly once,
  // also on failure (then before the return). Row i of the tensor is the i-th row of the step; rows
  // that the tensor has not are missing (not captured). A step begun by BeginStep may end so too,
  // if its view was not written. On failure the step is as before.
  [[nodiscard]] CaptureCode SubmitIds(StepId step, const StepIds& ids, DoneCallback done = {});

  // ---- what it knows ----

  [[nodiscard]] CaptureStats GetStats() const;
  // Layers that fell silent since the session was made, in order of layer.
  [[nodiscard]] std::vector<SilentLayer> SilentLayers() const;
  // Ok, or why the transport has failed. Every step is then dropped at its begin.
  [[nodiscard]] absl::Status status() const;

  [[nodiscard]] const RoutingShape& shape() const;
  [[nodiscard]] std::int32_t max_rows() const;
  // One a captured layer; the module of an unbound layer is empty.
  [[nodiscard]] const std::vector<LayerBinding>& bindings() const;
  [[nodiscard]] RoutingStore& store();
  [[nodiscard]] Transport& transport();

 private:
  class Impl;
  explicit CaptureSession(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_CAPTURE_SESSION_H_
