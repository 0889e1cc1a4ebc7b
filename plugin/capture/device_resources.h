// DeviceResources: the memory, streams and events that a transport has of its device, freed
// together.
#ifndef WAYMARK_PLUGIN_CAPTURE_DEVICE_RESOURCES_H_
#define WAYMARK_PLUGIN_CAPTURE_DEVICE_RESOURCES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "plugin/capture/device.h"

namespace waymark {

// One thread, as long as it is not freed.
class DeviceResources {
 public:
  // `device`: not null.
  explicit DeviceResources(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  DeviceResources(const DeviceResources&) = delete;
  DeviceResources& operator=(const DeviceResources&) = delete;

  // As the functions of Device; the result belongs to this object. Once one has failed, they
  // return null; status() is why.
  [[nodiscard]] void* AllocateMemory(std::size_t bytes);
  [[nodiscard]] void* AllocatePinned(std::size_t bytes);
  [[nodiscard]] DeviceStream CreateStream();
  [[nodiscard]] DeviceEvent CreateEvent();
  [[nodiscard]] const absl::Status& status() const { return status_; }
  // Of device and pinned memory.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  // Waits until the device has done all work that was enqueued, at most `timeout`, and frees
  // everything. False if the device hangs: it may write the memory at any time, so everything is
  // *given up*. It is freed if the device ever finishes its work, else it stays until the process
  // ends. Starts a thread ("wm-free"), because CUDA can only wait without a limit; a device that
  // hangs keeps that thread. If it cannot be started, everything is given up for good.
  [[nodiscard]] static bool Free(std::unique_ptr<DeviceResources> all,
                                 std::chrono::nanoseconds timeout) noexcept;

 private:
  // Waits for the device without a limit.
  void FreeNow();
  // What `make` returns, which `free` will give back.
  using GiveBack = void (Device::*)(void*);
  template <class Make>
  void* Keep(GiveBack free, const Make& make);

  const std::shared_ptr<Device> device_;
  std::vector<std::pair<GiveBack, void*>> kept_;
  std::size_t bytes_ = 0;
  absl::Status status_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_DEVICE_RESOURCES_H_
