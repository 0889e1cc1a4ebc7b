// StagedTransport: capture buffers on a device, landed through a ring in pinned host memory.
//
//   view (device)  --pack-->  staging (device)  --copy-->  staging (pinned)  --scatter-->  pages
//   engine's stream           engine's stream              own stream                landing thread
//
// A step has a staging buffer of the ring from its begin until it has landed, and a view from its
// begin until it is submitted. Submit enqueues, on the engine's stream, one launch (pack the rows
// and, of a step with device_slots, their slots; check the rows; make the view -1 again) and one
// event; the landing thread enqueues the copy on the transport's own stream, an event and a copy of
// one word behind it, watches the word in pinned memory, and scatters. Nothing else touches the
// device, the engine's thread never waits for it, and nothing is allocated after Create.
//
// A device that fails ends every step on its way as missing (not captured), and makes status() say
// why for good.
#ifndef WAYMARK_PLUGIN_CAPTURE_STAGED_TRANSPORT_H_
#define WAYMARK_PLUGIN_CAPTURE_STAGED_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugin/capture/device.h"
#include "plugin/capture/transport.h"

namespace waymark {

struct StagedOptions {
  std::shared_ptr<Device> device;  // required
  // True: one view at one address for every step and for the scratch view too, which is what a
  // CUDA graph needs that writes where it was captured. A step is then begun after the forward of
  // the one before has been enqueued. Of two steps that are open at once the second is dropped, and
  // the first, whose rows the second's forward overwrites, is not captured.
  // A rank that does not store makes the transport alone, and hands over to its scratch view: its
  // graph has the same launches.
  // False: as many views as buffers, and a scratch view beside them.
  bool one_view = false;
};

class StagedTransport : public Transport, public std::enable_shared_from_this<StagedTransport> {
 public:
  // For CaptureOptions::transport.
  [[nodiscard]] static TransportFactory Factory(StagedOptions staged);
  // InvalidArgument without a device; ResourceExhausted naming the bytes. Enqueues the first poison
  // of the views and waits for it.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Transport>> Create(
      const TransportOptions& options, const StagedOptions& staged);
  ~StagedTransport() override;
  StagedTransport(const StagedTransport&) = delete;
  StagedTransport& operator=(const StagedTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return "staged"; }
  void SetStream(DeviceStream stream) override { stream_ = stream; }
  [[nodiscard]] BufferId Acquire() override;
  void OnStepWithoutBuffer() override;
  [[nodiscard]] std::int32_t in_use() const override;
  [[nodiscard]] CaptureView View(BufferId buffer) override;
  void HandOver(BufferId buffer, std::int32_t layer, const IdsTensor& ids) override;
  [[nodiscard]] kernels::RoutingCode Route(BufferId buffer, const kernels::RoutingConfig& config,
                                           const kernels::RoutingTensors& tensors) override;
  [[nodiscard]] StepRows* Seal(BufferId buffer, std::int32_t rows, std::int32_t written_rows,
                               const std::int64_t* slots = nullptr) override;
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
    StagingBuffer* open = nullptr;  // the step that has it
    DeviceStream stream = nullptr;  // that it was last used on
    DeviceEvent used = nullptr;     // recorded there after that use; null: it has none yet
    StagingBuffer* last = nullptr;  // whose pack that use was; null: another use
    DeviceEvent own = nullptr;      // what uses that have no staging buffer record
  };

  StagedTransport(const TransportOptions& options, const StagedOptions& staged);
  absl::Status Allocate();
  [[nodiscard]] ViewMemory& ViewOf(BufferId buffer);
  // The view may be used on the current stream from here on. False: its last use is not over, and
  // the stream can take nothing now (kTryLater). Work that is then enqueued all the same fails.
  [[nodiscard]] bool Order(ViewMemory& view);
  void Poison(ViewMemory& view, std::int32_t rows);
  // What the step that has the view, if any, captures is not its own any more.
  void MarkOverwritten(ViewMemory& view);
  // True when `error` is none; else the transport has failed for good.
  bool Check(DeviceError error, const char* what);
  void Fail(const std::string& why);
  // Tells the log, once, why the transport has failed. Never within a call of the step path.
  void LogFailure() const;

  const TransportOptions options_;
  const StagedOptions staged_;
  Device& device_;
  DeviceStream stream_ = nullptr;       // the engine's
  DeviceStream copy_stream_ = nullptr;  // our own
  std::vector<void*> memory_, pinned_;  // to free
  void* arrived_ = nullptr;             // of the device: the word that is copied behind a step
  std::vector<ViewMemory> views_;  // the last one is the scratch view, unless it is the only one
  std::vector<std::unique_ptr<StagingBuffer>> staging_;
  std::int32_t next_ = 0;     // where Acquire looks first
  bool overwritten_ = false;  // a forward without a buffer has written, or will, into the one view
  std::atomic<bool> healthy_{true};
  mutable std::mutex error_mutex_;
  std::string error_;                    // guarded by error_mutex_
  mutable bool failure_logged_ = false;  // as well: the log has it
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_STAGED_TRANSPORT_H_
