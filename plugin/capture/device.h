// Device: what the staged transport needs of an accelerator, and nothing more.
//
// Streams, events, two kinds of memory, four launches and one copy. `CudaDevice` (cuda_device.h)
// is the real one; tests have one that runs on the host with the same freedom of order and delays
// chosen by seed. Work enqueued on a stream runs in order; streams are unordered but for events.
#ifndef WAYMARK_PLUGIN_CAPTURE_DEVICE_H_
#define WAYMARK_PLUGIN_CAPTURE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/ids_view.h"
#include "kernels/routing.h"

namespace waymark {

// One device's stream or event; what CUDA calls cudaStream_t and cudaEvent_t. A null stream is the
// device's default one.
using DeviceStream = void*;
using DeviceEvent = void*;

// What a call answers: 0, or the device's own error number (Device::ErrorText says it in words).
using DeviceError = std::int32_t;
// Of StreamWait alone, and no failure: another stream is being captured into a graph, which keeps
// the legacy default stream from taking any work.
inline constexpr DeviceError kTryLater = -1;

// Rows of a view to rows as pages have them, their slots beside them, and the view back to -1, in
// one launch.
struct PackLaunch {
  kernels::RowShape shape;
  const std::int16_t* view = nullptr;  // [L, *, K], layers `layer_stride` ids apart
  std::ptrdiff_t layer_stride = 0;
  std::int32_t first_row = 0;        // of the view
  std::int32_t rows = 0;             // packed, from first_row on
  std::int32_t written_rows = 0;     // rows [0, written_rows) of the view are -1 afterwards
  std::uint8_t* packed = nullptr;    // out: [rows] of shape.row_bytes()
  std::uint8_t* verdicts = nullptr;  // out: [rows] of kernels::RowVerdict
  // Null, or [rows] of the device's memory, copied to `packed_slots`, [rows].
  const std::int64_t* slots = nullptr;
  std::int64_t* packed_slots = nullptr;
  std::uint32_t* silent = nullptr;   // [L], added to: rows in which the layer has an id of -1
  std::uint32_t* invalid = nullptr;  // [L], added to: other rows in which the layer is invalid
};

// Any thread may call everything. The calls of the step path (from Pack to Query) neither wait for
// the device nor allocate nor throw.
class Device {
 public:
  enum class State : std::uint8_t { kPending, kDone, kFailed };

  virtual ~Device() = default;
  // "cuda:0", ... Outlives nothing: copy it.
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual std::string ErrorText(DeviceError error) const = 0;

  // ---- when a transport is made or ends
  // Memory of the device, and host memory that the device copies to by itself. ResourceExhausted
  // naming the bytes. Freed by FreeMemory / FreePinned.
  [[nodiscard]] virtual absl::StatusOr<void*> AllocateMemory(std::size_t bytes) = 0;
  [[nodiscard]] virtual absl::StatusOr<void*> AllocatePinned(std::size_t bytes) = 0;
  virtual void FreeMemory(void* memory) = 0;
  virtual void FreePinned(void* memory) = 0;
  [[nodiscard]] virtual absl::StatusOr<DeviceStream> CreateStream() = 0;
  [[nodiscard]] virtual absl::StatusOr<DeviceEvent> CreateEvent() = 0;
  virtual void DestroyStream(DeviceStream stream) = 0;
  virtual void DestroyEvent(DeviceEvent event) = 0;
  // Waits for everything that was enqueued, also when it failed.
  virtual void Synchronize() = 0;

  // ---- enqueue on a stream
  virtual DeviceError Pack(const PackLaunch& launch, DeviceStream stream) = 0;
  // -1 over rows [0, rows) of every layer of [num_layers, *, top_k].
  virtual DeviceError Poison(std::int16_t* view, std::ptrdiff_t layer_stride,
                             std::int32_t num_layers, std::int32_t top_k, std::int32_t rows,
                             DeviceStream stream) = 0;
  // The first top_k columns of `ids` to view[row * top_k + k], rows [0, rows).
  virtual DeviceError CaptureIds(const kernels::IdsView& ids, std::int32_t rows, std::int32_t top_k,
                                 std::int16_t* view, DeviceStream stream) = 0;
  // kernels::RouteOnHost's work in one launch; tensors in the device's memory. Checks first.
  virtual kernels::RoutingCode Route(const kernels::RoutingConfig& config,
                                     const kernels::RoutingTensors& tensors,
                                     DeviceStream stream) = 0;
  virtual DeviceError Zero(void* memory, std::size_t bytes, DeviceStream stream) = 0;
  // `to`: host memory, pinned where the call must not wait.
  virtual DeviceError CopyToHost(void* to, const void* from, std::size_t bytes,
                                 DeviceStream stream) = 0;
  virtual DeviceError Record(DeviceEvent event, DeviceStream stream) = 0;
  // What is enqueued on `stream` from here on runs after what the last Record of `event` stands
  // for. kTryLater: nothing can be enqueued on `stream` now, and nothing was.
  virtual DeviceError StreamWait(DeviceStream stream, DeviceEvent event) = 0;

  // ---- ask
  // The word at `word`, 4 bytes of pinned memory that the device writes (CopyToHost): an acquire
  // load, and no call of the driver.
  [[nodiscard]] virtual std::uint32_t Load(const std::uint32_t* word) = 0;
  // Whether what the last Record of `event` stands for has run; kFailed when it never will.
  [[nodiscard]] virtual State Query(DeviceEvent event) = 0;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_DEVICE_H_
