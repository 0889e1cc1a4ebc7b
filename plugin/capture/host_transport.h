// HostTransport: the transport with its capture buffers in host memory, for engines on the CPU and
// for tests.
#ifndef WAYMARK_PLUGIN_CAPTURE_HOST_TRANSPORT_H_
#define WAYMARK_PLUGIN_CAPTURE_HOST_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugin/capture/transport.h"

namespace waymark {

// Has num_buffers arrays [L, N_max, K] of int16, and a scratch array. The landing thread packs rows
// from a submitted buffer directly into pages, sets the written rows to -1, and frees the buffer.
// One atomic word per buffer records which thread owns it. Memory: num_buffers + 1 arrays, which
// are committed when the transport is made.
class HostTransport : public Transport, public std::enable_shared_from_this<HostTransport> {
 public:
  // ResourceExhausted naming the bytes if they cannot be allocated.
  // REQUIRES: valid options, E <= 32768.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Transport>> Create(
      const TransportOptions& options);
  // Without buffers: use Create.
  explicit HostTransport(const TransportOptions& options);
  ~HostTransport() override;
  HostTransport(const HostTransport&) = delete;
  HostTransport& operator=(const HostTransport&) = delete;

  // Transport (plugin/capture/transport.h) documents the calls below. The comments here add only
  // what is particular to the host.
  // Tries each buffer once, the one that was taken longest ago first.
  [[nodiscard]] BufferId Acquire() override;
  [[nodiscard]] std::int32_t in_use() const override;
  [[nodiscard]] CaptureView View(BufferId buffer) override;
  // Narrows the ids to int16 and copies them before it returns.
  void HandOver(BufferId buffer, std::int32_t layer, const StepIds& ids) override;
  // The result reads the buffer itself: nothing is copied here.
  [[nodiscard]] StepRows* Seal(BufferId buffer, std::int32_t rows,
                               std::int32_t written_rows) override;
  void Release(BufferId buffer, std::int32_t written_rows) override;
  [[nodiscard]] absl::Status ReadBack(BufferId buffer, std::int32_t rows,
                                      std::int16_t* out) override;
  // Always OK: host memory does not fail.
  [[nodiscard]] absl::Status status() const override { return absl::OkStatus(); }
  [[nodiscard]] bool healthy() const override { return true; }

 private:
  class Buffer;  // the memory of one buffer, its state, and the StepRows that reads it
  [[nodiscard]] Buffer& BufferOf(BufferId buffer);

  std::int32_t next_ = 0;                         // the buffer that Acquire tries first
  std::vector<std::unique_ptr<Buffer>> buffers_;  // the last one is the scratch buffer
  const TransportOptions options_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_HOST_TRANSPORT_H_
