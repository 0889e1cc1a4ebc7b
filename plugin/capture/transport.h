// Transport: the interface of the memory into which forwards write their routing, and of the path
// from there to the store's landing thread.
//
// The capture session decides which step uses which buffer and how the step ends. The transport
// owns the buffers and makes a submitted one readable to the landing thread. HostTransport
// (plugin/capture/host_transport.h) has its buffers in host memory. StagedTransport
// (plugin/capture/staged_transport.h) has them on a device: Seal() launches a kernel that packs the
// rows, and Seal() and Release() set the written ids to -1, all in stream order, so the buffers of
// several steps may be the same memory.
#ifndef WAYMARK_PLUGIN_CAPTURE_TRANSPORT_H_
#define WAYMARK_PLUGIN_CAPTURE_TRANSPORT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/log.h"
#include "blockstore/shape.h"
#include "blockstore/store/step_rows.h"
#include "plugin/capture/ids_tensor.h"
#include "plugin/capture/layer_counters.h"

namespace waymark {

// The number of a buffer of a transport: 0 ... num_buffers - 1, or one of the constants below.
using BufferId = std::int32_t;
inline constexpr BufferId kNoBuffer = -1;       // no buffer
inline constexpr BufferId kScratchBuffer = -2;  // the scratch buffer, whose ids never land

// The memory into which one forward writes: for each layer a C-order [max_rows, top_k] array of
// int16, in which every id is -1 before the forward. Row i is row i of the step. Owned by the
// transport, host or device memory; valid until the step is submitted, dropped or cancelled.
struct CaptureView {
  std::int16_t* data = nullptr;
  std::ptrdiff_t layer_stride = 0;  // ids (not bytes) from one layer to the next
  std::int32_t num_layers = 0;      // L
  std::int32_t max_rows = 0;        // N_max
  std::int32_t top_k = 0;           // K
  BufferId buffer = kNoBuffer;
  // The step that has the buffer. For the scratch buffer 0, or the step that CaptureSession::view
  // was asked for and that was not begun.
  std::uint64_t step = 0;

  // The [max_rows, top_k] array of captured layer `index`. REQUIRES: 0 <= index < num_layers.
  [[nodiscard]] std::int16_t* layer(std::int32_t index) const {
    return data + index * layer_stride;
  }
};

// The arguments of a TransportFactory.
struct TransportOptions {
  RoutingShape shape;
  std::int32_t max_rows = 0;     // N_max: rows of one forward, padding included
  std::int32_t num_buffers = 0;  // R: steps that can have a buffer at once
  // Counts the faults of layers at landing. Shared with the session.
  std::shared_ptr<LayerCounters> counters;
  // Called once if the transport fails for good, with the reason. Never on the step path: a failure
  // found there is logged by the next landing that meets it, by ReadBack or status(), and at the
  // latest by the destructor. Also called if the destructor gives its buffers up.
  LogCallback log = {};
  // How long the destructor waits for a device to finish its work. At least 0; more than a year
  // counts as a year.
  std::chrono::nanoseconds teardown_timeout = std::chrono::seconds(5);
};

// A view of `buffer` of a transport with these options.
[[nodiscard]] inline CaptureView ViewOf(const TransportOptions& of, std::int16_t* data,
                                        std::ptrdiff_t layer_stride, BufferId buffer) {
  return {data, layer_stride, of.shape.num_layers, of.max_rows, of.shape.top_k, buffer, 0};
}

// All calls come from the engine's thread; the landing thread, or a RowGather's, calls the
// StepRows that Seal() returns. No call but ReadBack and status() allocates or blocks, and none
// throws.
//
// The store may hold a StepRows of a transport after the session is gone, so an implementation
// keeps itself alive until the last StepRows::Done().
class Transport {
 public:
  virtual ~Transport() = default;

  // Where its buffers are: "host", or the device.
  [[nodiscard]] virtual std::string_view name() const { return "host"; }

  // Sets the stream of the transport's device on which the engine issues the forwards from now on;
  // for CUDA a cudaStream_t. The calls below enqueue their work on it, in order with the forwards.
  // Ignored by host transports.
  virtual void SetStream(void* stream) { (void)stream; }

  // Takes a free buffer, in which every id is -1; kNoBuffer if none is free. Seal or Release ends
  // its use.
  [[nodiscard]] virtual BufferId Acquire() = 0;
  // Called for a step that was begun and has no buffer. Its forward runs all the same and writes
  // into the scratch view; the transport makes sure that no later step lands those ids.
  virtual void OnStepWithoutBuffer() {}
  // The number of buffers that are not free.
  [[nodiscard]] virtual std::int32_t in_use() const = 0;
  // The view of `buffer`, which may be the scratch buffer.
  [[nodiscard]] virtual CaptureView View(BufferId buffer) = 0;
  // Copies the first K columns of `ids` into the ids.rows rows of `layer` from ids.first_row on. An
  // id that does not fit int16 is replaced by one that is never valid. REQUIRES: `ids` satisfies
  // the rules that CaptureSession::HandOver checks.
  virtual void HandOver(BufferId buffer, std::int32_t layer, const StepIds& ids) = 0;

  // Submits an acquired buffer, whose forward has been issued: row i < rows of the returned
  // StepRows is row i of the buffer. Rows [0, written_rows) are set to -1 before the buffer is
  // free again. The transport owns the result; the caller passes it to RoutingStore::Submit at
  // once. REQUIRES: 0 <= rows <= written_rows <= max_rows.
  [[nodiscard]] virtual StepRows* Seal(BufferId buffer, std::int32_t rows,
                                       std::int32_t written_rows) = 0;
  // Ends the use of an acquired buffer without landing its rows: rows [0, written_rows) are set to
  // -1, and the buffer is free. For the scratch buffer, sets its rows to -1.
  virtual void Release(BufferId buffer, std::int32_t written_rows) = 0;

  // Copies rows [0, rows) of every layer of `buffer` to `out`, [L, rows, K] in C order, host
  // memory. For the self-test, off the step path: a device transport blocks until the device has
  // written the rows and they are copied. Fails if the transport has failed.
  [[nodiscard]] virtual absl::Status ReadBack(BufferId buffer, std::int32_t rows,
                                              std::int16_t* out) = 0;
  // OK, or why the transport has failed for good; the session then drops every step at its begin.
  [[nodiscard]] virtual absl::Status status() const = 0;
  // status().ok(), without an allocation.
  [[nodiscard]] virtual bool healthy() const = 0;
};

// Makes a transport; called once, by CaptureSession::Create, which returns its error.
using TransportFactory =
    std::function<absl::StatusOr<std::shared_ptr<Transport>>(const TransportOptions&)>;

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_TRANSPORT_H_
