#include "plugin/capture/host_transport.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "blockstore/step_path.h"
#include "kernels/capture_ids.h"
#include "plugin/capture/ids_kind.h"
#include "plugin/capture/row_lander.h"

namespace waymark {
namespace {

struct FreeMemory {
  void operator()(std::int16_t* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::int16_t, FreeMemory>;

constexpr std::ptrdiff_t kLineIds = 64 / sizeof(std::int16_t);

std::ptrdiff_t LayerStride(const TransportOptions& options) {
  const std::ptrdiff_t ids = std::ptrdiff_t{options.max_rows} * options.shape.top_k;
  const std::ptrdiff_t lines = (ids + kLineIds - 1) / kLineIds;
  return (lines | 1) * kLineIds;
}

std::size_t BufferBytes(const TransportOptions& options) {
  return static_cast<std::size_t>(LayerStride(options)) *
         static_cast<std::size_t>(options.shape.num_layers) * sizeof(std::int16_t);
}

}  // namespace

// A free buffer has no owner, and its ids are -1. A taken one belongs to the engine's thread from
// Acquire to Seal or Release, and to the landing thread from Seal to Done.
class HostTransport::Buffer : public HostRows {
 public:
  Buffer(const TransportOptions& options, Memory memory)
      : HostRows(options.shape, options.max_rows, options.counters),
        layer_stride_(LayerStride(options)),
        memory_(std::move(memory)) {
    constexpr auto kId = static_cast<std::ptrdiff_t>(sizeof(std::int16_t));
    SetIds({data(), kernels::IdKind::kInt16, shape_.top_k * kId, layer_stride_ * kId, kId});
    Poison(options.max_rows);
  }

  bool TryTake() {
    if (taken_.load(std::memory_order_acquire)) return false;
    taken_.store(true, std::memory_order_relaxed);  // only the engine's thread takes
    return true;
  }
  [[nodiscard]] bool taken() const { return taken_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::int16_t* data() const { return memory_.get(); }
  [[nodiscard]] std::ptrdiff_t layer_stride() const { return layer_stride_; }

  void Seal(std::shared_ptr<HostTransport> owner, std::int32_t rows, std::int32_t written_rows) {
    owner_ = std::move(owner);
    SetRows(rows, written_rows);
  }

  void Poison(std::int32_t rows) {
    kernels::PoisonRows(memory_.get(), layer_stride_, shape_.num_layers, shape_.top_k, rows);
  }
  void GiveBack() { taken_.store(false, std::memory_order_release); }

  void Done() override {
    // The session may be gone: then this was the last that kept the transport, and *this, alive.
    const std::shared_ptr<HostTransport> owner = std::move(owner_);
    Reset();
    Poison(batch_rows());
    GiveBack();
  }

 private:
  const std::ptrdiff_t layer_stride_;  // in ids
  const Memory memory_;
  std::atomic<bool> taken_{false};
  std::shared_ptr<HostTransport> owner_;  // from Seal to Done
};

absl::StatusOr<std::shared_ptr<Transport>> HostTransport::Create(const TransportOptions& options) {
  // Allocated in one piece, and what a step touches one after the other: with cold caches, pages
  // cost the step path most.
  const auto transport = std::make_shared<HostTransport>(options);
  transport->buffers_.reserve(static_cast<std::size_t>(options.num_buffers) + 1);
  for (std::int32_t i = 0; i <= options.num_buffers; ++i) {
    Memory memory(static_cast<std::int16_t*>(std::aligned_alloc(64, BufferBytes(options))));
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(
          "HostTransport: no memory for buffer " + std::to_string(i) + " of " +
          std::to_string(options.num_buffers + 1) + ", " + std::to_string(BufferBytes(options)) +
          " bytes each (max_rows " + std::to_string(options.max_rows) + ")");
    }
    transport->buffers_.push_back(std::make_unique<Buffer>(options, std::move(memory)));
  }
  return std::shared_ptr<Transport>(std::move(transport));
}

HostTransport::HostTransport(const TransportOptions& options) : options_(options) {}

HostTransport::~HostTransport() = default;

WAYMARK_STEP_PATH BufferId HostTransport::Acquire() {
  const std::int32_t count = options_.num_buffers;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t buffer = next_;
    next_ = next_ + 1 == count ? 0 : next_ + 1;
    if (buffers_[static_cast<std::size_t>(buffer)]->TryTake()) return buffer;
  }
  return kNoBuffer;
}

std::int32_t HostTransport::in_use() const {
  return static_cast<std::int32_t>(std::count_if(
      buffers_.begin(), buffers_.end(), [](const auto& buffer) { return buffer->taken(); }));
}

HostTransport::Buffer& HostTransport::BufferOf(BufferId buffer) {
  return buffer == kScratchBuffer ? *buffers_.back() : *buffers_[static_cast<std::size_t>(buffer)];
}

CaptureView HostTransport::View(BufferId buffer) {
  const Buffer& of = BufferOf(buffer);
  return ViewOf(options_, of.data(), of.layer_stride(), buffer);
}

void HostTransport::HandOver(BufferId buffer, std::int32_t layer, const StepIds& ids) {
  const Buffer& of = BufferOf(buffer);
  const kernels::IdsView view{ids.data, ToKind(ids.type), ids.row_stride, 0, ids.k_stride};
  kernels::CaptureIds(
      view, ids.rows, options_.shape.top_k,
      of.data() + layer * of.layer_stride() + std::ptrdiff_t{ids.first_row} * options_.shape.top_k);
}

WAYMARK_STEP_PATH StepRows* HostTransport::Seal(BufferId buffer, std::int32_t rows,
                                                std::int32_t written_rows) {
  Buffer& of = BufferOf(buffer);
  of.Seal(shared_from_this(), rows, written_rows);
  return &of;
}

WAYMARK_STEP_PATH void HostTransport::Release(BufferId buffer, std::int32_t written_rows) {
  Buffer& of = BufferOf(buffer);
  of.Poison(written_rows);
  if (buffer != kScratchBuffer) of.GiveBack();
}

absl::Status HostTransport::ReadBack(BufferId buffer, std::int32_t rows, std::int16_t* out) {
  const CaptureView view = View(buffer);
  const std::size_t ids = static_cast<std::size_t>(rows) * static_cast<std::size_t>(view.top_k);
  for (std::int32_t layer = 0; layer < view.num_layers; ++layer) {
    std::memcpy(out + static_cast<std::size_t>(layer) * ids, view.layer(layer),
                ids * sizeof(std::int16_t));
  }
  return absl::OkStatus();
}

}  // namespace waymark
