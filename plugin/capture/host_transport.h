// HostTransport: capture buffers in host memory, for engines on the CPU and for tests.
#ifndef WAYMARK_PLUGIN_CAPTURE_HOST_TRANSPORT_H_
#define WAYMARK_PLUGIN_CAPTURE_HOST_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugin/capture/transport.h"

namespace waymark {

// A ring of `num_buffers` arrays [L, N_max, K] of int16, and a scratch array. The landing thread
// packs rows out of a submitted buffer straight into pages, makes the written rows -1 again and
// gives the buffer back; a buffer changes hands through one atomic word. Memory: (num_buffers + 1)
// arrays, touched when made.
class HostTransport : public Transport, public std::enable_shared_from_this<HostTransport> {
 public:
  // ResourceExhausted naming the bytes when memory cannot be had. REQUIRES: valid options, E <=
  // 32768.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<Transport>> Create(
      const TransportOptions& options);
  ~HostTransport() override;
  HostTransport(const HostTransport&) = delete;
  HostTransport& operator=(const HostTransport&) = delete;

  // What follows is as Transport says (plugin/capture/transport.h); here is only what is of the host.
  [[nodiscard]] std::string_view name() const override { return "host"; }
  // Engine's thread. Looks at each buffer once, never waits.
  [[nodiscard]] BufferId Acquire() override;
  [[nodiscard]] std::int32_t in_use() const override;
  [[nodiscard]] CaptureView View(BufferId buffer) override;
  // Narrows to int16 and copies before it returns. Ids that do not fit become invalid ones.
  void HandOver(BufferId buffer, std::int32_t layer, const IdsTensor& ids) override;
  [[nodiscard]] kernels::RoutingCode Route(BufferId buffer, const kernels::RoutingConfig& config,
                                           const kernels::RoutingTensors& tensors) override;
  // The buffer itself is the source: nothing is copied here.
  [[nodiscard]] RowSource* Seal(BufferId buffer, std::int32_t rows, std::int32_t written_rows,
                                const std::int64_t* slots = nullptr) override;
  void Release(BufferId buffer, std::int32_t written_rows) override;
  [[nodiscard]] absl::Status ReadBack(BufferId buffer, std::int32_t rows,
                                      std::int16_t* out) override;
  // Memory does not fail: always well.
  [[nodiscard]] absl::Status status() const override { return absl::OkStatus(); }
  [[nodiscard]] bool healthy() const override { return true; }

 private:
  class Buffer;  // one of the ring: its memory, its state, and the RowSource that lands it
  explicit HostTransport(const TransportOptions& options);
  [[nodiscard]] Buffer& BufferOf(BufferId buffer);

  const TransportOptions options_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::unique_ptr<Buffer> scratch_;
  std::int32_t next_ = 0;  // where Acquire looks first: the buffer that was given out longest ago
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_HOST_TRANSPORT_H_
