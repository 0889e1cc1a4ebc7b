// Device: the interface to an accelerator, with only the calls that StagedTransport needs.
//
// It has streams, events, two kinds of memory, two launches, and a copy to the host. CudaDevice
// (cuda_device.h) implements it by the CUDA runtime; tests use a device that runs on the host, in
// any order that streams allow, with delays drawn from a seed. Work enqueued on one stream runs in
// order; work on different streams is ordered by events alone.
#ifndef WAYMARK_PLUGIN_CAPTURE_DEVICE_H_
#define WAYMARK_PLUGIN_CAPTURE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/ids_view.h"
#include "kernels/pack_cuda.h"

namespace waymark {

// A stream or event of one device; for CUDA a cudaStream_t or cudaEvent_t. A null stream is the
// device's default stream.
using DeviceStream = void*;
using DeviceEvent = void*;

// The result of a call: 0, or the device's own error number, whose text Device::ErrorText returns.
using DeviceError = std::int32_t;
// Returned by StreamWait only; not a failure. The stream is being captured into a graph, which
// waits for nothing; or another one is, and meanwhile CUDA refuses work on the legacy default
// stream.
inline constexpr DeviceError kTryLater = -1;

// Any thread may make any call. The calls of the step path (from Pack to Query) do not wait for the
// device, allocate or throw.
class Device {
 public:
  enum class State : std::uint8_t { kPending, kDone, kFailed };

  virtual ~Device() = default;
  // "cuda:0", ... Valid as long as this object.
  [[nodiscard]] virtual std::string_view name() const = 0;
  // The text of an error for logs and statuses. Allocates.
  [[nodiscard]] virtual std::string ErrorText(DeviceError error) const = 0;

  // ---- creation and destruction of a transport; may block and allocate ----

  // Allocates device memory, and pinned host memory, to which the device can copy on its own.
  // ResourceExhausted naming the bytes. The caller frees them by FreeMemory and FreePinned.
  [[nodiscard]] virtual absl::StatusOr<void*> AllocateMemory(std::size_t bytes) = 0;
  [[nodiscard]] virtual absl::StatusOr<void*> AllocatePinned(std::size_t bytes) = 0;
  virtual void FreeMemory(void* memory) = 0;
  virtual void FreePinned(void* memory) = 0;
  // Creates a stream or event. The caller destroys it by DestroyStream or DestroyEvent.
  [[nodiscard]] virtual absl::StatusOr<DeviceStream> CreateStream() = 0;
  [[nodiscard]] virtual absl::StatusOr<DeviceEvent> CreateEvent() = 0;
  virtual void DestroyStream(DeviceStream stream) = 0;
  virtual void DestroyEvent(DeviceEvent event) = 0;
  // Waits until all work enqueued on `stream` has run or failed.
  virtual void Synchronize(DeviceStream stream) = 0;

  // ---- work enqueued on a stream ----

  // kernels::PackRowsOnCuda: one launch packs rows of a view into the layout of pages, checks their
  // ids, and sets rows of the view to -1. All memory is the device's.
  virtual DeviceError Pack(const kernels::PackLaunch& launch, DeviceStream stream) = 0;
  // Copies the first top_k columns of rows [0, rows) of `ids` to view[row * top_k + k].
  virtual DeviceError CaptureIds(const kernels::IdsView& ids, std::int32_t rows, std::int32_t top_k,
                                 std::int16_t* view, DeviceStream stream) = 0;
  // Sets `bytes` bytes of device memory to 0.
  virtual DeviceError Zero(void* memory, std::size_t bytes, DeviceStream stream) = 0;
  // Copies `bytes` bytes of device memory to host memory. `to` must be pinned if the call must not
  // wait.
  virtual DeviceError CopyToHost(void* to, const void* from, std::size_t bytes,
                                 DeviceStream stream) = 0;
  // Records `event`: it stands for all work enqueued on `stream` so far.
  virtual DeviceError Record(DeviceEvent event, DeviceStream stream) = 0;
  // Makes later work on `stream` run after the work that the last Record of `event` stands for.
  // kTryLater: `stream` cannot wait now, and nothing was enqueued.
  virtual DeviceError StreamWait(DeviceStream stream, DeviceEvent event) = 0;

  // ---- queries ----

  // Returns the 4 bytes at `word`, pinned memory that the device writes (CopyToHost): an acquire
  // load, without a call of the driver.
  [[nodiscard]] virtual std::uint32_t Load(const std::uint32_t* word) = 0;
  // Whether the work that the last Record of `event` stands for has run; kFailed: it never will.
  [[nodiscard]] virtual State Query(DeviceEvent event) = 0;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_DEVICE_H_
