// The last error of CUDA is the engine's: whichever call of ours fails, it is afterwards what it
// was before. A small session and the kernels that are called without one, over cuda_model.h.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/pack_cuda.h"
#include "kernels/routing_cuda.h"
#include "plugin/capture/capture_session.h"
#include "plugin/capture/cuda_device.h"
#include "plugin/capture/staged_transport.h"
#include "tests/support/cuda_model.h"

namespace waymark {
namespace {

constexpr std::int32_t kLayers = 2, kTopK = 2, kExperts = 8, kRows = 4;
constexpr std::int32_t kPage = 4;

// What an engine does, once; on one thread, which lands, too.
class Scenario {
 public:
  // Before each call of ours, `before` is the last error. The `failing_call`-th call of ours of the
  // runtime fails; 0: none.
  Scenario(cudaError_t before, std::int64_t failing_call)
      : before_(before), failing_call_(failing_call) {
    (void)cudaSetDevice(1);
    for (cudaStream_t& stream : streams_)
      if (stream == nullptr) (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cuda_model::Reset();
    cuda_model::settings.at_once = true;
    cuda_model::settings.failing_call = failing_call;
    cuda_model::last_error = before;
  }

  void Run() {
    Kernels();
    absl::StatusOr<std::shared_ptr<CudaDevice>> device = CudaDevice::Create(1);
    Check("CudaDevice::Create");
    if (!device.ok()) return;
    StoreOptions of_store;
    of_store.shape = {
        .num_layers = kLayers, .top_k = kTopK, .num_experts = kExperts, .page_tokens = kPage};
    of_store.num_blocks = 8;
    of_store.landing = Landing::kCaller;
    store_ = RoutingStore::Create(of_store).value();
    for (const bool one_view : {false, true}) {
      CaptureOptions of_session;
      of_session.store = store_.get();
      of_session.max_rows = kRows;
      of_session.num_buffers = 2;
      of_session.transport = StagedTransport::Factory({*device, one_view});
      absl::StatusOr<std::unique_ptr<CaptureSession>> session = CaptureSession::Create(of_session);
      Check("CaptureSession::Create");
      if (!session.ok()) continue;
      Steps(**session);
      session->reset();
      Check("the end of a session");
    }
    store_.reset();
    Check("the end of a store");
    device->reset();
    Check("the end of a device");
  }

  // Whether the call that was to fail was made.
  [[nodiscard]] bool failed() const {
    return failing_call_ != 0 && cuda_model::num_calls >= failing_call_;
  }

 private:
  void Check(const char* after) {
    const cudaError_t now = cudaPeekAtLastError();
    const std::string where =
        std::string("after ") + after + ", with call " + std::to_string(failing_call_) + " failing";
    if (before_ == cudaSuccess || !failed()) {
      EXPECT_EQ(now, before_) << where;
    } else {
      EXPECT_NE(now, cudaSuccess) << where;
    }
    cuda_model::last_error = before_;
  }

  void Steps(CaptureSession& session) {
    const std::vector<std::int32_t> ids = {0, 1, 2, 3, 4, 5, 6, 7};
    const StepIds tensor = StepIds::OfLayer(ids.data(), IdType::kInt32, kRows, kTopK);
    const std::vector<std::int64_t> slots = {0, 1, 2, 3};
    for (int i = 0; i < 6; ++i) {
      const StepId step(++step_);
      const Event events[] = {Event::Bind(BlockId(0))};
      StepBatch batch = {.step = step.value(), .version = 1};
      batch.events = events, batch.num_events = 1;
      batch.slots = slots.data(), batch.num_slots = slots.size();
      session.SetStream(streams_[i % 3]);
      (void)session.BeginStep(batch);
      Check("BeginStep");
      (void)session.HandOver(session.view(step), 0, tensor);
      Check("HandOver");
      switch (i) {
        case 2:
          (void)session.Drop(step);
          break;
        case 3:
          (void)session.Cancel(step);
          break;
        default:
          (void)session.Submit(step);
      }
      Check("the end of a step");
      session.Discard(kRows);
      Check("Discard");
      // Two steps are in flight at times; the second may have no buffer or no view.
      if (i == 4) continue;
      while (store_->LandOne()) {
      }
      Check("LandOne");
    }
    std::vector<std::int16_t> out(kLayers * kRows * kTopK);
    (void)session.transport().ReadBack(kScratchBuffer, kRows, out.data());
    Check("ReadBack");
    (void)session.status();
    Check("status");
  }

  // Without a session.
  void Kernels() {
    std::vector<std::int16_t> view(kLayers * kRows * kTopK);
    std::vector<std::uint8_t> packed(kRows * kLayers * kTopK);
    std::vector<kernels::RowVerdict> verdicts(kRows);
    kernels::PackLaunch pack;
    pack.shape = {kLayers, kTopK, kExperts};
    pack.view = view.data();
    pack.layer_stride = kRows * kTopK;
    pack.rows = pack.written_rows = kRows;
    pack.packed = packed.data();
    pack.verdicts = verdicts.data();
    (void)kernels::PackRowsOnCuda(pack, nullptr);
    Check("PackRowsOnCuda");
    const kernels::IdsView ids{view.data(), kernels::IdKind::kInt16, 2 * kTopK, 0, 2};
    (void)kernels::CaptureIdsOnCuda(ids, kRows, kTopK, view.data(), nullptr);
    Check("CaptureIdsOnCuda");
    std::vector<std::int16_t> out(kLayers * kRows * kTopK);
    kernels::CudaGather gather;
    gather.shape = pack.shape;
    gather.packed = packed.data();
    gather.rows = kRows;
    gather.out = out.data();
    (void)kernels::GatherRowsOnCuda(gather, nullptr);
    Check("GatherRowsOnCuda");
    // New tensors: where they lie is asked.
    logits_.assign(1, std::vector<float>(kRows * kExperts));
    (void)kernels::RouteOnCuda(config_, Tensors(), nullptr);
    Check("RouteOnCuda");
  }

  kernels::RoutingTensors Tensors() {
    const kernels::MemoryDevice device = kernels::MemoryDevice::Cuda(0);
    kernels::RoutingTensors tensors;
    tensors.logits = kernels::Tensor::Matrix(logits_[0].data(), kernels::DType::kFloat32, kRows,
                                             kExperts, device);
    tensors.topk_ids =
        kernels::Tensor::Matrix(topk_ids_.data(), kernels::DType::kInt32, kRows, kTopK, device);
    tensors.topk_weights =
        kernels::Tensor::Matrix(weights_.data(), kernels::DType::kFloat32, kRows, kTopK, device);
    return tensors;
  }

  const cudaError_t before_;
  const std::int64_t failing_call_;
  const kernels::RoutingConfig config_{.method = kernels::RoutingMethod::kRenormalize,
                                       .top_k = kTopK};
  std::vector<std::vector<float>> logits_{std::vector<float>(kRows * kExperts)};
  std::vector<std::int32_t> topk_ids_ = std::vector<std::int32_t>(kRows * kTopK);
  std::vector<float> weights_ = std::vector<float>(kRows * kTopK);
  std::unique_ptr<RoutingStore> store_;
  std::uint64_t step_ = 0;
  static inline cudaStream_t streams_[3] = {};
};

class CudaLastErrorTest : public testing::TestWithParam<cudaError_t> {};

TEST_P(CudaLastErrorTest, IsKeptWhicheverCallFails) {
  {
    Scenario scenario(GetParam(), 0);
    scenario.Run();
    ASSERT_GT(cuda_model::num_calls.load(), 100);
  }
  std::int64_t call = 1;
  for (;; ++call) {
    Scenario scenario(GetParam(), call);
    scenario.Run();
    if (!scenario.failed() || HasFailure()) break;
  }
  EXPECT_GT(call, 100);
}

INSTANTIATE_TEST_SUITE_P(Before, CudaLastErrorTest,
                         testing::Values(cudaSuccess, cudaErrorInvalidDevice),
                         [](const testing::TestParamInfo<cudaError_t>& of) {
                           return of.param == cudaSuccess ? "Nothing" : "AnError";
                         });

// An event that is not reached is no error of anybody's.
TEST(CudaLastError, IsKeptByAQueryOfAnEventThatIsNotReached) {
  cuda_model::Reset();
  const std::shared_ptr<CudaDevice> device = CudaDevice::Create(1).value();
  DeviceEvent const event = device->CreateEvent().value();
  cuda_model::settings.not_ready = 1;
  EXPECT_EQ(device->Query(event), Device::State::kPending);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(device->Query(event), Device::State::kDone);
  cuda_model::last_error = cudaErrorInvalidDevice;
  EXPECT_EQ(device->Query(event), Device::State::kDone);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  cuda_model::settings.not_ready = 1;
  EXPECT_EQ(device->Query(event), Device::State::kPending);
  EXPECT_NE(cudaPeekAtLastError(), cudaSuccess);
}

}  // namespace
}  // namespace waymark
