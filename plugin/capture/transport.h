// Transport: the memory that forwards write their routing into, and the way from there to the
// pages.
//
// A capture session decides which step uses which buffer and what becomes of it; a transport owns
// the buffers, wherever they are, and makes a submitted one readable to the store's landing thread.
// `HostTransport` (plugin/capture/host_transport.h) keeps them in host memory. A transport for a device
// launches its pack in Seal() and poisons in Seal() and Release(), in stream order, so that its
// buffers may share memory that stays at one address.
#ifndef WAYMARK_PLUGIN_CAPTURE_TRANSPORT_H_
#define WAYMARK_PLUGIN_CAPTURE_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/log.h"
#include "blockstore/shape.h"
#include "blockstore/store/row_source.h"
#include "kernels/routing.h"
#include "plugin/capture/ids_tensor.h"
#include "plugin/capture/layer_counters.h"

namespace waymark {

// Names one buffer of a transport: 0 ... num_buffers - 1.
using BufferId = std::int32_t;
inline constexpr BufferId kNoBuffer = -1;       // there is none
inline constexpr BufferId kScratchBuffer = -2;  // always there; what is written into it never lands

// Where one forward writes: per layer a C-order [max_rows, top_k] array of int16, every id -1
// before the forward. Row i is the i-th row of the step. Memory of the transport, in its address
// space; valid until the step that it belongs to has been submitted, dropped or cancelled.
struct CaptureView {
  std::int16_t* data = nullptr;
  std::ptrdiff_t layer_stride = 0;  // in ids
  std::int32_t num_layers = 0;
  std::int32_t max_rows = 0;
  std::int32_t top_k = 0;
  BufferId buffer = kNoBuffer;
  std::uint64_t step = 0;  // whose buffer it is; 0 for the scratch buffer

  // The [max_rows, top_k] array of captured layer `index`. REQUIRES: 0 <= index < num_layers.
  [[nodiscard]] std::int16_t* layer(std::int32_t index) const {
    return data + index * layer_stride;
  }
};

// What a transport is made with.
struct TransportOptions {
  RoutingShape shape;
  std::int32_t max_rows = 0;     // rows of one forward, padding included (N_max)
  std::int32_t num_buffers = 0;  // steps that may be on their way at once (R)
  // Where landing counts the layers that were silent or wrong. Shared with the session.
  std::shared_ptr<LayerCounters> counters;
  // Hears, once, why the transport has failed for good. A failure that is found within a call of
  // the step path is told by the next landing that meets it, ReadBack or status(), and at the
  // latest when the transport goes.
  LogCallback log = {};
};

// The engine's thread calls everything here; the RowSource that Seal() gives is called by the
// landing thread. No call but the constructor of an implementation allocates, waits or throws. A
// transport outlives its session while the store still holds a source of it: whoever implements
// this keeps itself alive until the last RowSource::Done().
class Transport {
 public:
  virtual ~Transport() = default;

  // "host", "staged", ... Static storage.
  [[nodiscard]] virtual std::string_view name() const = 0;

  // The stream, of those that the transport's device has, on which the engine issues the forwards
  // of steps from here on: what the calls below enqueue goes there, in order with the forwards. For
  // CUDA a cudaStream_t. Of no account to transports without a device.
  virtual void SetStream(void* stream) { (void)stream; }

  // Takes a free buffer, all -1; kNoBuffer when none is. It is given back by Seal or Release.
  [[nodiscard]] virtual BufferId Acquire() = 0;
  // A step was begun that has no buffer: its forward runs all the same, and writes into the scratch
  // view. It leaves nothing behind that a later step could take for its own.
  virtual void RunsWithoutBuffer() {}
  // Buffers that are not free.
  [[nodiscard]] virtual std::int32_t in_use() const = 0;
  // Where to write into `buffer`, the scratch buffer included.
  [[nodiscard]] virtual CaptureView View(BufferId buffer) = 0;
  // Copies the first K columns of `ids` into rows [0, ids.rows) of `layer`; an id that int16 cannot
  // hold becomes one that is never valid. REQUIRES: ids were checked (CaptureSession::HandOver
  // does).
  virtual void HandOver(BufferId buffer, std::int32_t layer, const IdsTensor& ids) = 0;
  // Routes where the buffers are: on the calling thread for host memory, on the stream of SetStream
  // for a device. `tensors.replay_out` is a layer of View(buffer), so the ids are recorded without
  // a copy. Checks the arguments (kernels::CheckRouting) before it does anything. A transport that
  // has failed still routes: the engine needs the ids whether or not they are kept.
  [[nodiscard]] virtual kernels::RoutingCode Route(BufferId buffer,
                                                   const kernels::RoutingConfig& config,
                                                   const kernels::RoutingTensors& tensors) = 0;

  // The forward of an acquired buffer has been issued. Its rows [0, rows) go to the store, which
  // gets the source returned; rows [0, written_rows) are -1 again, and the buffer free, before
  // anybody acquires it again. REQUIRES: rows <= written_rows <= max_rows. The caller passes the
  // source to RoutingStore::Submit at once; it belongs to the transport. `slots`: of a step with
  // device_slots, [rows] in the transport's memory, the slot of each row; read in order with the
  // forward, and given to the store by RowSource::Slots. Null otherwise.
  [[nodiscard]] virtual RowSource* Seal(BufferId buffer, std::int32_t rows,
                                        std::int32_t written_rows,
                                        const std::int64_t* slots = nullptr) = 0;
  // Nothing of an acquired buffer lands: its rows [0, written_rows) are -1 again and it is free
  // before the next use. Of the scratch buffer: the rows are -1 again, and it stays.
  virtual void Release(BufferId buffer, std::int32_t written_rows) = 0;

  // Of what the host can read of `buffer` now; for the self-test, off the step path: a device
  // transport waits and copies here. `out`: [L, rows, K] in C order.
  [[nodiscard]] virtual absl::Status ReadBack(BufferId buffer, std::int32_t rows,
                                              std::int16_t* out) = 0;
  // Ok, or why the transport has failed for good: every step is then dropped at its begin.
  [[nodiscard]] virtual absl::Status status() const = 0;
  // status().ok(), without an allocation.
  [[nodiscard]] virtual bool healthy() const = 0;
};

// Makes a transport. Called once, by CaptureSession::Create.
using TransportFactory =
    std::function<absl::StatusOr<std::shared_ptr<Transport>>(const TransportOptions&)>;

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_TRANSPORT_H_
