// The staged transport keeps the contract of transports over a CUDA device; and what a device alone
// can show: a graph that was captured once and replayed at several sizes.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "plugin/capture/cuda_device.h"
#include "plugin/capture/staged_transport.h"
#include "tests/contract/transport_contract.h"
#include "tests/gpu/cuda_support.h"

namespace waymark {
namespace {

const std::shared_ptr<CudaDevice>& TheDevice() {
  static const std::shared_ptr<CudaDevice> device = CudaDevice::Create(0).value();
  return device;
}

struct CudaTraits {
  static std::string WhyNot() { return kernels::NoCuda(); }
  static TransportFactory Factory() { return StagedTransport::Factory({TheDevice()}); }
  static constexpr std::uint64_t kDriverAllocations = 200;  // of 80 steps; 102 with driver 580
  // Copies of pageable memory are staged before the call returns, in stream order.
  static void Write(const CaptureView& view, std::int32_t layer, std::int32_t first_row,
                    const std::int16_t* ids, std::int32_t rows) {
    if (rows == 0) return;
    const std::ptrdiff_t row = view.top_k;
    EXPECT_EQ(cudaMemcpyAsync(view.layer(layer) + first_row * row, ids,
                              static_cast<std::size_t>(rows * row) * sizeof(std::int16_t),
                              cudaMemcpyHostToDevice, nullptr),
              cudaSuccess);
  }
  // Pinned: SubmitIds reads it on the host, HandOver on the device.
  class Array {
   public:
    explicit Array(const std::vector<std::uint8_t>& bytes) {
      EXPECT_EQ(cudaMallocHost(&memory_, bytes.size() + 1), cudaSuccess);
      if (!bytes.empty()) std::memcpy(memory_, bytes.data(), bytes.size());
    }
    ~Array() {
      (void)cudaDeviceSynchronize();
      (void)cudaFreeHost(memory_);
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    [[nodiscard]] const void* data() const { return memory_; }

   private:
    void* memory_ = nullptr;
  };
};

INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, AllocationContract, CudaTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, BufferContract, CudaTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, CaptureContract, CudaTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, HandOverContract, CudaTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, PackedIdsContract, CudaTraits);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, StepContract, CudaTraits);

// As CudaTraits, with one view.
struct GraphTraits {
  static TransportFactory Factory() { return StagedTransport::Factory({TheDevice(), true}); }
  static void Write(const CaptureView& view, std::int32_t layer, std::int32_t first_row,
                    const std::int16_t* ids, std::int32_t rows) {
    CudaTraits::Write(view, layer, first_row, ids, rows);
  }
};
using GraphEngine = ContractEngine<GraphTraits>;

class StagedOnCuda : public kernels::CudaTest {};

// A graph of 512 rows hands every layer over from buffers of its own, whose content changes; the
// steps that replay it have other numbers of rows, and one of them is cancelled. An eager step
// follows in which a layer is silent.
TEST_F(StagedOnCuda, AGraphIsCapturedOnceAndReplayedAtEverySize) {
  constexpr std::int32_t kRows = 512;
  constexpr std::int32_t kLayers = GraphEngine::kLayers;
  constexpr std::int32_t kTopK = GraphEngine::kTopK;
  GraphEngine engine({.max_rows = kRows});
  CaptureSession& session = *engine.session;
  constexpr std::size_t kLayerIds = std::size_t{kRows} * kTopK;
  const kernels::DeviceArray<std::int16_t> ids(kLayers * kLayerIds);
  const kernels::CudaStream stream;
  const auto write = [&](std::uint64_t step, std::int32_t rows) {
    const std::vector<std::int16_t> host = engine.Ids(step, rows);
    EXPECT_EQ(cudaMemcpyAsync(ids.data(), host.data(), host.size() * sizeof(std::int16_t),
                              cudaMemcpyHostToDevice, stream.get()),
              cudaSuccess);
  };
  const auto hand_over = [&](const CaptureView& view, std::int32_t layer, std::int32_t rows) {
    const std::ptrdiff_t at = std::ptrdiff_t{rows} * kTopK * layer;
    const StepIds tensor = StepIds::OfLayer(ids.data() + at, IdType::kInt16, rows, kTopK);
    ASSERT_TRUE(session.HandOver(view, layer, tensor).ok());
  };
  session.SetStream(stream.get());

  kernels::CudaGraph graph;
  graph.Begin(stream);
  for (std::int32_t layer = 0; layer < kLayers; ++layer)
    hand_over(session.scratch_view(), layer, kRows);
  session.Discard(kRows);       // as behind any forward that is in no step
  { const GraphEngine other; }  // another session, from its begin to its end
  EXPECT_EQ(graph.End(stream), static_cast<std::size_t>(kLayers));
  ASSERT_TRUE(session.status().ok()) << session.status();

  std::uint64_t step = 0;
  for (const std::int32_t rows : {512, 300, 1, 7, 400}) {
    ASSERT_TRUE(engine.Begin(++step, rows, kRows).ok());
    write(step, kRows);
    graph.Launch(stream);
    ASSERT_TRUE(session.Submit(StepId(step)).ok());
    engine.ExpectRows(step, rows);
    engine.SettleAndAwaitBuffers();
  }
  ASSERT_TRUE(engine.Begin(++step, 300, kRows).ok());
  write(step, kRows);
  graph.Launch(stream);
  ASSERT_TRUE(session.Cancel(StepId(step)).ok());

  ASSERT_TRUE(engine.Begin(++step, 400).ok());
  write(step, 400);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    if (layer != 1) hand_over(session.view(StepId(step)), layer, 400);
  }
  ASSERT_TRUE(session.Submit(StepId(step)).ok());
  engine.ExpectMissing(step, 400, Reason::kNotCaptured);
  engine.SettleAndAwaitBuffers();
}

}  // namespace
}  // namespace waymark
