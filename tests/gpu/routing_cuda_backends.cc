// The routing suite on a CUDA device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/routing_cuda.h"
#include "tests/gpu/cuda_support.h"
#include "tests/unit/kernels/routing_backend.h"

namespace waymark::kernels {
namespace {

// A tensor's whole extent on the device, with bytes before and behind it that must stay as they
// are.
class DeviceCopy {
 public:
  DeviceCopy(const Tensor& host, bool written) : host_(host), written_(written) {
    tensor_ = host;
    if (!(host.device == MemoryDevice::Host())) return;
    tensor_.device = MemoryDevice::Cuda(0);
    if (!host.given()) return;
    bytes_ = static_cast<std::size_t>(Elements(host)) * DTypeBytes(host.dtype);
    // The alignment that the caller's pointer has, up to 16.
    before_ = kGuard + reinterpret_cast<std::uintptr_t>(host.data) % 16;
    image_.assign(before_ + bytes_ + kGuard, kGuardByte);
    if (bytes_ != 0) std::memcpy(image_.data() + before_, host.data, bytes_);
    device_ = std::make_unique<DeviceArray<std::uint8_t>>(image_);
    tensor_.data = device_->data() + before_;
  }

  [[nodiscard]] const Tensor& tensor() const { return tensor_; }

  // Copies an output back. Fails the test where anything else has changed.
  void Finish(const char* name) {
    if (device_ == nullptr) return;
    const std::vector<std::uint8_t> after = device_->Get();
    const auto begin = static_cast<std::ptrdiff_t>(before_);
    const auto end = begin + static_cast<std::ptrdiff_t>(bytes_);
    EXPECT_TRUE(std::equal(after.begin(), after.begin() + begin, image_.begin()))
        << "bytes before " << name << " were written";
    EXPECT_TRUE(std::equal(after.begin() + end, after.end(), image_.begin() + end))
        << "bytes behind " << name << " were written";
    if (written_) {
      if (bytes_ != 0) std::memcpy(host_.data, after.data() + before_, bytes_);
    } else {
      EXPECT_TRUE(after == image_) << name << " was written";
    }
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::uint8_t kGuardByte = 0xc7;

  // 0 of what no check lets through.
  static std::int64_t Elements(const Tensor& tensor) {
    if (tensor.rank != 1 && tensor.rank != 2) return 0;
    std::int64_t last = 0;
    for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
      if (tensor.shape[axis] <= 0) return 0;
      if (tensor.shape[axis] > 1) last += (tensor.shape[axis] - 1) * tensor.stride[axis];
    }
    return last < 0 ? 0 : last + 1;
  }

  const Tensor host_;
  const bool written_;
  Tensor tensor_;
  std::size_t bytes_ = 0;
  std::size_t before_ = 0;
  std::vector<std::uint8_t> image_;  // what was copied to the device, guards included
  std::unique_ptr<DeviceArray<std::uint8_t>> device_;
};

class CudaRoutingBackend final : public RoutingBackend {
 public:
  [[nodiscard]] std::string name() const override { return "cuda"; }
  [[nodiscard]] MemoryDevice device() const override { return MemoryDevice::Cuda(0); }

  RoutingCode Route(const RoutingConfig& config, const RoutingTensors& tensors) override {
    DeviceCopy logits(tensors.logits, false), bias(tensors.bias, false);
    DeviceCopy ids(tensors.topk_ids, true), weights(tensors.topk_weights, true);
    DeviceCopy replay_out(tensors.replay_out, true), replay_in(tensors.replay_in, false);
    DeviceCopy routed(tensors.routed, true);
    const RoutingCode code =
        RouteOnCuda(config,
                    {logits.tensor(), bias.tensor(), ids.tensor(), weights.tensor(),
                     replay_out.tensor(), replay_in.tensor(), routed.tensor()},
                    stream_.get());
    stream_.Synchronize();
    logits.Finish("logits");
    bias.Finish("bias");
    ids.Finish("topk_ids");
    weights.Finish("topk_weights");
    replay_out.Finish("replay_out");
    replay_in.Finish("replay_in");
    routed.Finish("routed");
    return code;
  }

 private:
  CudaStream stream_;
};

}  // namespace

const std::vector<std::unique_ptr<RoutingBackend>>& RoutingBackends() {
  static const auto* const backends = [] {
    auto* list = new std::vector<std::unique_ptr<RoutingBackend>>();
    if (NoCuda().empty()) list->push_back(std::make_unique<CudaRoutingBackend>());
    return list;
  }();
  return *backends;
}

}  // namespace waymark::kernels
