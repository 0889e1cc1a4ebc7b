// StagedTransport: capture buffers on a device, landed through a ring in pinned host memory.
//
//   view (device)  --pack-->  staging (device)  --copy-->  staging (pinned)  --scatter-->  pages
//   engine's stream           engine's stream              own stream                landing thread
//
// A step has a staging buffer of the ring from its begin until its rows have been read (the step
// has landed, or was fetched), and a view from its begin until it is submitted. Submit enqueues, on
// the engine's stream, one launch (pack and check the rows; set the view to -1 again) and one
// event; the landing thread enqueues the copy on the transport's own stream, an event and a copy of
// one word behind it, watches the word in pinned memory, and scatters. Nothing else touches the
// device, the engine's thread never waits for it, and nothing is allocated after Create.
//
// If the device fails, the rows of every step in flight become missing (not captured), and status()
// returns the reason from then on.
//
// If the device hangs, it may write the memory at any later time. A transport whose device has not
// finished its work TransportOptions::teardown_timeout after its destructor was called gives its
// memory, streams and events up (DeviceResources) and logs that once. If the store has given a step
// up (StepRows::GiveUp), the device has had that time, and the destructor does not wait again.
#ifndef WAYMARK_PLUGIN_CAPTURE_STAGED_TRANSPORT_H_
#define WAYMARK_PLUGIN_CAPTURE_STAGED_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugin/capture/device.h"
#include "plugin/capture/transport.h"

namespace waymark {

class DeviceResources;  // plugin/capture/device_resources.h

struct StagedOptions {
  std::shared_ptr<Device> device;  // required
  // True: every step and the scratch view share one view at one address, because a CUDA graph
  // writes to the addresses with which it was captured. The forward of a step must then have been
  // enqueued before the next step is begun. Of two steps that have a view at the same time the
  // second is dropped, and the rows of the first, which the second's forward overwrites, are
  // missing (not captured). A rank that stores no rows creates the transport without a session and
  // hands its ids over to the scratch buffer, so that its graph has the same launches.
  // False: one view per buffer, and a scratch view.
  bool one_view = false;
};

class StagedTransport : public Transport, public std::enable_shared_from_this<StagedTransport> {
 public:
  // For CaptureOptions::transport.
  [[nodiscard]] static TransportFactory Factory(StagedOptions staged);
  // InvalidArgument without a device; ResourceExhausted naming the bytes. Sets the views to -1 and
  // waits until the device has done so.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Transport>> Create(
      const TransportOptions& options, const StagedOptions& staged);
  ~StagedTransport() override;
  StagedTransport(const StagedTransport&) = delete;
  StagedTransport& operator=(const StagedTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return device_.name(); }
  void SetStream(DeviceStream stream) override;
  [[nodiscard]] BufferId Acquire() override;
  void OnStepWithoutBuffer() override;
  [[nodiscard]] std::int32_t in_use() const override;
  [[nodiscard]] CaptureView View(BufferId buffer) override;
  void HandOver(BufferId buffer, std::int32_t layer, const StepIds& ids) override;
  [[nodiscard]] StepRows* Seal(BufferId buffer, std::int32_t rows,
                               std::int32_t written_rows) override;
  void Release(BufferId buffer, std::int32_t written_rows) override;
  [[nodiscard]] absl::Status ReadBack(BufferId buffer, std::int32_t rows,
                                      std::int16_t* out) override;
  [[nodiscard]] absl::Status status() const override;
  [[nodiscard]] bool healthy() const override { return healthy_.load(std::memory_order_acquire); }

 private:
  class StagingBuffer;  // one of the ring: its memory, its state, and the StepRows that lands it
  // A view's memory, and what it was last used for.
  struct ViewMemory {
    std::int16_t* data = nullptr;
    StagingBuffer* open = nullptr;  // of the step that has the view; null: none
    DeviceStream stream = nullptr;  // the stream of its last use
    DeviceEvent used = nullptr;     // recorded on it after that use; null: never used
    DeviceEvent own = nullptr;      // recorded after a use without a staging buffer
    bool stale = false;             // may have ids of no step: all is set to -1 before the next one
    std::optional<DeviceStream> loose = {};  // of a forward behind that use, which has no event
  };

  StagedTransport(const TransportOptions& options, const StagedOptions& staged);
  absl::Status Allocate();
  [[nodiscard]] ViewMemory& MemoryOf(BufferId buffer);
  // `event` was recorded on the current stream, behind a use of `view`.
  void Recorded(ViewMemory& view, DeviceEvent event);
  // A forward writes into `view`, on the current stream, without an event behind it.
  void Loosen(ViewMemory& view);
  // Records an event behind that forward, if the current stream is another one by now. False: its
  // stream takes none now.
  [[nodiscard]] bool Follow(ViewMemory& view);
  // Orders later work on the current stream after the last use of `view`. False: that use is not
  // over, and nothing can be enqueued on the stream now (kTryLater): an attempt would fail.
  [[nodiscard]] bool Order(ViewMemory& view);
  // A launch that packs nothing, and sets rows [0, written) of `view` to -1.
  [[nodiscard]] kernels::PackLaunch LaunchOn(std::int16_t* view, std::int32_t written) const;
  void Poison(ViewMemory& view, std::int32_t rows);
  // Another forward writes into the view: the rows of the step that has it, if any, are missing.
  void MarkOverwritten(ViewMemory& view);
  // True if `error` is 0; otherwise calls Fail with `what` (the failed action) and the error text.
  bool Check(DeviceError error, const char* what);
  void Fail(const std::string& why);
  // Logs once why the transport has failed. Not called on the step path.
  void LogFailure() const;

  const TransportOptions options_;
  const StagedOptions staged_;
  Device& device_;
  DeviceStream stream_ = nullptr;               // the engine's
  DeviceStream copy_stream_ = nullptr;          // the transport's
  std::unique_ptr<DeviceResources> resources_;  // the destructor frees them or gives them up
  void* arrived_ = nullptr;        // device memory: the word that is copied after a step
  std::vector<ViewMemory> views_;  // the last one is the scratch view, unless it is the only one
  std::vector<std::unique_ptr<StagingBuffer>> staging_;
  std::int32_t next_ = 0;  // where Acquire looks first
  std::atomic<bool> healthy_{true};
  std::atomic<bool> waited_{false};  // teardown_timeout is over
  mutable std::mutex error_mutex_;
  std::string error_;                    // guarded by error_mutex_
  mutable bool failure_logged_ = false;  // guarded by error_mutex_
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_STAGED_TRANSPORT_H_
