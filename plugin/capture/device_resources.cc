#include "plugin/capture/device_resources.h"

#include <utility>

#include "blockstore/thread.h"

namespace waymark {

template <class Make>
void* DeviceResources::Keep(GiveBack free, const Make& make) {
  if (!status_.ok()) return nullptr;
  kept_.reserve(kept_.size() + 1);  // what the device gives is not lost for want of room
  const absl::StatusOr<void*> made = make();
  status_ = made.status();
  if (made.ok()) kept_.emplace_back(free, *made);
  return made.ok() ? *made : nullptr;
}

void* DeviceResources::AllocateMemory(std::size_t bytes) {
  bytes_ += bytes;
  return Keep(&Device::FreeMemory, [&] { return device_->AllocateMemory(bytes); });
}

void* DeviceResources::AllocatePinned(std::size_t bytes) {
  bytes_ += bytes;
  return Keep(&Device::FreePinned, [&] { return device_->AllocatePinned(bytes); });
}

DeviceStream DeviceResources::CreateStream() {
  return Keep(&Device::DestroyStream, [&] { return device_->CreateStream(); });
}

DeviceEvent DeviceResources::CreateEvent() {
  return Keep(&Device::DestroyEvent, [&] { return device_->CreateEvent(); });
}

void DeviceResources::FreeNow() {
  // Behind what was recorded, on its one stream: others may be in capture.
  DeviceStream stream = nullptr;
  for (const auto& [give_back, object] : kept_) {
    if (give_back == &Device::DestroyStream) stream = object;
    if (give_back == &Device::DestroyEvent) (void)device_->StreamWait(stream, object);
  }
  device_->Synchronize(stream);
  // CUDA waits for the device where memory is freed, too.
  for (const auto& [give_back, object] : kept_)
    ((*device_).*give_back)(object);
}

bool DeviceResources::Free(std::unique_ptr<DeviceResources> all,
                           std::chrono::nanoseconds timeout) noexcept {
  DeviceResources* const given = all.release();
  absl::StatusOr<LibraryThread> thread = LibraryThread::Start("wm-free", {}, nullptr, [given] {
    given->FreeNow();
    delete given;
  });
  return thread.ok() && thread->End(timeout);
}

}  // namespace waymark
