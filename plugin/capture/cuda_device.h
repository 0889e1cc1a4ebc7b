// CudaDevice: the staged transport's device, by the CUDA runtime.
//
// Streams and events are cudaStream_t and cudaEvent_t. Leaves the thread's current device and last
// error (kernels/cuda_last_error.h) as they were, and makes no context on another device. No call
// of the step path synchronises or allocates.
#ifndef WAYMARK_PLUGIN_CAPTURE_CUDA_DEVICE_H_
#define WAYMARK_PLUGIN_CAPTURE_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "plugin/capture/device.h"

struct CUctx_st;  // what CUDA's CUcontext points to

namespace waymark {

class CudaDevice : public Device {
 public:
  // The device of this number. Unavailable when there is no driver or no such device, or it is
  // older than sm_80; names the number and CUDA's error.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<CudaDevice>> Create(std::int32_t ordinal);

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::string ErrorText(DeviceError error) const override;
  [[nodiscard]] absl::StatusOr<void*> AllocateMemory(std::size_t bytes) override;
  [[nodiscard]] absl::StatusOr<void*> AllocatePinned(std::size_t bytes) override;
  void FreeMemory(void* memory) override;
  void FreePinned(void* memory) override;
  // Does not wait for the legacy default stream, nor make it wait.
  [[nodiscard]] absl::StatusOr<DeviceStream> CreateStream() override;
  [[nodiscard]] absl::StatusOr<DeviceEvent> CreateEvent() override;
  void DestroyStream(DeviceStream stream) override;
  void DestroyEvent(DeviceEvent event) override;
  void Synchronize(DeviceStream stream) override;
  DeviceError Pack(const kernels::PackLaunch& launch, DeviceStream stream) override;
  DeviceError CaptureIds(const kernels::IdsView& ids, std::int32_t rows, std::int32_t top_k,
                         std::int16_t* view, DeviceStream stream) override;
  DeviceError Zero(void* memory, std::size_t bytes, DeviceStream stream) override;
  DeviceError CopyToHost(void* to, const void* from, std::size_t bytes,
                         DeviceStream stream) override;
  DeviceError Record(DeviceEvent event, DeviceStream stream) override;
  // kTryLater for a stream in capture, since a graph's order against other streams is its replay's;
  // and for the legacy default stream while a stream that it synchronises with is in capture.
  DeviceError StreamWait(DeviceStream stream, DeviceEvent event) override;
  [[nodiscard]] std::uint32_t Load(const std::uint32_t* word) override;
  [[nodiscard]] State Query(DeviceEvent event) override;

 private:
  CudaDevice(std::int32_t ordinal, CUctx_st* context);

  CUctx_st* const context_;  // the primary one
  const std::string name_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_CUDA_DEVICE_H_
