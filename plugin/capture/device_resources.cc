#include "plugin/capture/device_resources.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "blockstore/thread.h"
#include "blockstore/timeout.h"

namespace waymark {
namespace {

std::atomic<std::size_t> given_up_bytes{0};

}  // namespace

template <class Make>
void* DeviceResources::Keep(std::vector<void*>& all, const Make& make) {
  if (!status_.ok()) return nullptr;
  all.reserve(all.size() + 1);  // so that what the device has given is not lost for want of room
  const absl::StatusOr<void*> made = make();
  status_ = made.status();
  if (made.ok()) all.push_back(*made);
  return made.ok() ? *made : nullptr;
}

void* DeviceResources::AllocateMemory(std::size_t bytes) {
  bytes_ += bytes;
  return Keep(memory_, [&] { return device_->AllocateMemory(bytes); });
}

void* DeviceResources::AllocatePinned(std::size_t bytes) {
  bytes_ += bytes;
  return Keep(pinned_, [&] { return device_->AllocatePinned(bytes); });
}

DeviceStream DeviceResources::CreateStream() {
  return Keep(streams_, [&] { return device_->CreateStream(); });
}

DeviceEvent DeviceResources::CreateEvent() {
  return Keep(events_, [&] { return device_->CreateEvent(); });
}

void DeviceResources::FreeNow() {
  device_->Synchronize();
  for (DeviceEvent event : events_)
    device_->DestroyEvent(event);
  for (DeviceStream stream : streams_)
    device_->DestroyStream(stream);
  // CUDA waits for the device here, too.
  for (void* memory : memory_)
    device_->FreeMemory(memory);
  for (void* memory : pinned_)
    device_->FreePinned(memory);
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
    given_up_bytes.fetch_sub(shared->bytes_);
    delete shared;
  });
  {
    std::unique_lock<std::mutex> lock(shared->mutex_);
    const bool freed = thread.ok() && shared->freed_.wait_for(lock, Clamped(timeout), [&] {
      return shared->state_ == State::kFreed;
    });
    if (!freed) {
      shared->state_ = State::kGivenUp;
      given_up_bytes.fetch_add(shared->bytes_);
      if (thread.ok()) thread->detach();
      return false;
    }
  }
  thread->join();
  delete shared;
  return true;
}

std::size_t DeviceResources::bytes_given_up() {
  return given_up_bytes.load();
}

}  // namespace waymark
