#include "plugin/capture/device_resources.h"

#include <thread>
#include <utility>

#include "blockstore/thread.h"
#include "blockstore/timeout.h"

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
  // From here on it belongs to whichever of the two threads is done with it last.
  DeviceResources* const shared = all.release();
  absl::StatusOr<std::thread> thread = StartThread("wm-free", {}, [shared] {
    shared->FreeNow();
    {
      const std::lock_guard<std::mutex> lock(shared->mutex_);
      if (std::exchange(shared->state_, State::kFreed) != State::kGivenUp) {
        shared->freed_.notify_one();
        return;
      }
    }
    delete shared;
  });
  {
    std::unique_lock<std::mutex> lock(shared->mutex_);
    const bool freed = thread.ok() && shared->freed_.wait_for(lock, Clamped(timeout), [&] {
      return shared->state_ == State::kFreed;
    });
    if (!freed) {
      shared->state_ = State::kGivenUp;
      if (thread.ok()) thread->detach();
      return false;
    }
  }
  thread->join();
  delete shared;
  return true;
}

}  // namespace waymark
