// NcclCollective: the all-gather of a Collective over NCCL, for ranks with a CUDA device each.
// Built with WAYMARK_NCCL; loads libnccl when the first one is created.
//
// It moves bytes of host memory: through pinned memory to the device, over a communicator and a
// stream of its own, and back. Use it where no other group reaches the ranks: within a machine a
// group over host memory is as good, and takes no time of the device. NCCL runs the kernels of two
// communicators of one device in any order, so the device must have room for both; do not create it
// with CUDA_DEVICE_MAX_CONNECTIONS=1.
#ifndef WAYMARK_PLUGIN_CAPTURE_NCCL_COLLECTIVE_H_
#define WAYMARK_PLUGIN_CAPTURE_NCCL_COLLECTIVE_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugin/capture/collective.h"

namespace waymark {

// What the ranks of one communicator share: made by one of them, and sent to the others.
using NcclId = std::array<std::uint8_t, 128>;

struct NcclOptions {
  NcclId id{};
  std::int32_t device = 0;  // ordinal of the CUDA device of this rank
  std::int32_t rank = 0;    // in [0, ranks)
  std::int32_t ranks = 1;   // 1 ... 4096
  std::size_t max_bytes =
      0;  // of one rank in a call; this much, times 2 * (ranks + 1), is allocated
  // How long Create, and each call, waits for the other ranks.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
};

// One thread at a time. A call that fails ends the communicator: later ones return Unavailable (14)
// at once.
class NcclCollective {
 public:
  // An id for one communicator. Unavailable if libnccl.so.2 cannot be loaded.
  [[nodiscard]] static absl::StatusOr<NcclId> NewId();
  // Waits for the other ranks. InvalidArgument naming the field; Unavailable if libnccl.so.2 cannot
  // be loaded, or the device or NCCL refuses; DeadlineExceeded if a rank does not come;
  // ResourceExhausted naming the bytes.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<NcclCollective>> Create(
      const NcclOptions& options);
  ~NcclCollective();
  NcclCollective(const NcclCollective&) = delete;
  NcclCollective& operator=(const NcclCollective&) = delete;

  // For CaptureOptions::row_gather, GatherLayers and GatherRows. This object must outlive it. A call
  // returns InvalidArgument (3) for more than max_bytes, DeadlineExceeded (4), or Unavailable (14).
  [[nodiscard]] Collective collective();

 private:
  class Impl;
  explicit NcclCollective(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_CAPTURE_NCCL_COLLECTIVE_H_
