// What CudaDevice asks of the CUDA runtime on the engine's thread: cuda_model.h stands in for
// CUDA's.
#include "plugin/capture/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/checked_pointers.h"
#include "kernels/routing_cuda.h"
#include "plugin/capture/staged_transport.h"
#include "tests/contract/contract_engine.h"
#include "tests/support/cuda_model.h"

namespace waymark {
namespace {

using cuda_model::calls;
using testing::ElementsAre;
using testing::Pair;

struct Traits {
  static inline std::shared_ptr<Device> device;
  static TransportFactory Factory() { return StagedTransport::Factory({device}); }
  static void Write(const CaptureView& view, std::int32_t layer, std::int32_t first_row,
                    const std::int16_t* ids, std::int32_t rows) {
    std::memcpy(view.layer(layer) + static_cast<std::ptrdiff_t>(first_row) * view.top_k, ids,
                static_cast<std::size_t>(rows * view.top_k) * sizeof(std::int16_t));
  }
};
using Engine = ContractEngine<Traits>;

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    cuda_model::Reset();
    Traits::device = CudaDevice::Create(0).value();
  }
  void TearDown() override { Traits::device.reset(); }
};

TEST_F(CudaDeviceTest, TheStepPathIsOneLaunchAndOneEvent) {
  Engine engine({.landing = Landing::kThread});
  for (std::uint64_t step = 1; step <= 20; ++step) {
    calls.clear();
    ASSERT_TRUE(engine.Begin(step, 20, 24).ok());
    engine.Forward(step, 24);
    ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
    EXPECT_THAT(calls, ElementsAre(Pair("cudaEventRecord", 1), Pair("cudaLaunchKernel", 1)));
    engine.SettleAndAwaitBuffers();
  }
  engine.ExpectRows(20, 20);
}

TEST_F(CudaDeviceTest, OnlyMakingAndEndingATransportAllocateAndWait) {
  calls.clear();
  {
    Engine engine({.landing = Landing::kCaller});
    const std::map<std::string, int> made = calls;
    EXPECT_GT(made.at("cudaMalloc"), 0);
    EXPECT_GT(made.at("cudaHostAlloc"), 0);
    EXPECT_EQ(made.at("cudaStreamSynchronize"), 1);
    calls.clear();
    const std::vector<std::int32_t> ids(8 * Engine::kTopK);
    for (std::uint64_t step = 1; step <= 8; ++step) {
      ASSERT_TRUE(engine.Begin(step, 8).ok());
      const StepIds tensor = StepIds::OfLayer(ids.data(), IdType::kInt32, 8, Engine::kTopK);
      ASSERT_TRUE(engine.session->HandOver(engine.session->view(StepId(step)), 1, tensor).ok());
      engine.session->Discard(8);
      if (step % 3 == 0) {
        ASSERT_TRUE(engine.session->Drop(StepId(step)).ok());
      } else if (step % 3 == 1) {
        ASSERT_TRUE(engine.session->Cancel(StepId(step)).ok());
      } else {
        ASSERT_TRUE(engine.session->Submit(StepId(step)).ok());
      }
      engine.SettleAndAwaitBuffers();
    }
    for (const auto& [name, count] : calls) {
      EXPECT_THAT(name, testing::Not(testing::HasSubstr("lloc"))) << count;
      EXPECT_THAT(name, testing::Not(testing::HasSubstr("ynchronize"))) << count;
      EXPECT_THAT(name, testing::Not(testing::HasSubstr("cudaFree"))) << count;
    }
  }
  // A thread of its own waits and frees (DeviceResources).
  for (const auto& [name, count] : calls) {
    EXPECT_THAT(name, testing::Not(testing::HasSubstr("ynchronize"))) << count;
    EXPECT_THAT(name, testing::Not(testing::HasSubstr("cudaFree"))) << count;
  }
}

// Bug: the threads of a rank, which have chosen no device, made a context on GPU 0, too, of half a
// gigabyte for each rank.
TEST_F(CudaDeviceTest, NoOtherDeviceGetsAContextNorTheThread) {
  cuda_model::Reset();
  Traits::device = CudaDevice::Create(1).value();
  {
    Engine engine({.landing = Landing::kThread});
    for (std::uint64_t step = 1; step <= 4; ++step) {
      engine.Run(step, 8);
      engine.SettleAndAwaitBuffers();
    }
    engine.ExpectRows(4, 8);
  }
  EXPECT_TRUE(cuda_model::contexts.empty());
  EXPECT_TRUE(cuda_model::has_context[1]);
  EXPECT_FALSE(cuda_model::has_context[0]);
}

// Routing of a layer: in every step one launch; where the memory of the tensors lies, CUDA is asked
// once per pointer.
TEST_F(CudaDeviceTest, ARoutedLayerIsOneLaunchAndItsPointersAreAskedForOnce) {
  cuda_model::settings.memory_type = cudaMemoryTypeDevice;
  const kernels::MemoryDevice cuda = kernels::MemoryDevice::Cuda(0);
  std::vector<float> logits(8 * 64), weights(8 * Engine::kTopK);
  std::vector<std::int32_t> ids(8 * Engine::kTopK);
  kernels::RoutingConfig config;
  config.method = kernels::RoutingMethod::kRenormalize;
  config.top_k = Engine::kTopK;
  kernels::RoutingTensors tensors;
  tensors.logits = kernels::Tensor::Matrix(logits.data(), kernels::DType::kFloat32, 8, 64, cuda);
  tensors.topk_ids =
      kernels::Tensor::Matrix(ids.data(), kernels::DType::kInt32, 8, Engine::kTopK, cuda);
  tensors.topk_weights =
      kernels::Tensor::Matrix(weights.data(), kernels::DType::kFloat32, 8, Engine::kTopK, cuda);
  const auto route = [&] {
    calls.clear();
    const kernels::RoutingCode code = kernels::RouteOnCuda(config, tensors, nullptr);
    EXPECT_TRUE(code.ok()) << code.ToString();
    return calls;
  };
  EXPECT_THAT(route(),
              ElementsAre(Pair("cudaLaunchKernel", 1), Pair("cudaPointerGetAttributes", 3)));
  for (int again = 0; again < 3; ++again)
    EXPECT_THAT(route(), ElementsAre(Pair("cudaLaunchKernel", 1)));
  std::vector<float> others(8 * 64);
  tensors.logits.data = others.data();
  EXPECT_THAT(route(),
              ElementsAre(Pair("cudaLaunchKernel", 1), Pair("cudaPointerGetAttributes", 1)));
  // Memory that lies elsewhere is refused however often it comes.
  cuda_model::settings.memory_type = cudaMemoryTypeHost;
  std::vector<float> on_host(8 * 64);
  tensors.logits.data = on_host.data();
  for (int again = 0; again < 2; ++again) {
    calls.clear();
    const kernels::RoutingCode code = kernels::RouteOnCuda(config, tensors, nullptr);
    EXPECT_EQ(code.argument, kernels::RoutingArgument::kLogits);
    EXPECT_EQ(code.rule, kernels::RoutingRule::kNotOnDevice);
    EXPECT_THAT(calls, ElementsAre(Pair("cudaPointerGetAttributes", 1)));
  }
  cuda_model::settings.memory_type = cudaMemoryTypeDevice;
  // A launch that the device refuses is no argument's fault.
  calls.clear();
  tensors.logits.data = others.data();
  cuda_model::settings.failing = cudaErrorLaunchFailure;
  const kernels::RoutingCode failed = kernels::RouteOnCuda(config, tensors, nullptr);
  EXPECT_EQ(failed.rule, kernels::RoutingRule::kCuda);
  EXPECT_EQ(failed.ToString(), "stream gave CUDA error 719");
  cuda_model::settings.failing = cudaSuccess;
}

TEST(CheckedPointers, RemembersPointersByDeviceInAFixedTable) {
  static kernels::CheckedPointers checked;
  const auto pointer = [](std::uint64_t i) {
    return reinterpret_cast<const void*>(0x7f0000000000u + i * 4096);
  };
  EXPECT_FALSE(checked.Has(nullptr, 0));
  EXPECT_FALSE(checked.Has(pointer(0), 0));
  // As many as an engine has: none is displaced.
  for (std::uint64_t i = 0; i < 464; ++i)
    checked.Add(pointer(i), 3);
  for (std::uint64_t i = 0; i < 464; ++i) {
    EXPECT_TRUE(checked.Has(pointer(i), 3)) << i;
    EXPECT_FALSE(checked.Has(pointer(i), 2)) << i;
  }
  // More than there is room for: the last one is always there.
  for (std::uint64_t i = 0; i < 20000; ++i) {
    checked.Add(pointer(i), 5);
    EXPECT_TRUE(checked.Has(pointer(i), 5)) << i;
  }
  // A device that has no number in an entry is never remembered, and never known.
  for (const std::int32_t device : {-1, 127, 1 << 20}) {
    checked.Add(pointer(0), device);
    EXPECT_FALSE(checked.Has(pointer(0), device));
  }
}

TEST_F(CudaDeviceTest, AStreamInCaptureWaitsForNothing) {
  Device& device = *Traits::device;
  DeviceEvent const event = device.CreateEvent().value();
  ASSERT_EQ(device.Record(event, nullptr), 0);
  cudaGraph_t graph = nullptr;
  for (const unsigned flags : {cudaStreamNonBlocking, cudaStreamDefault}) {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    calls.clear();
    EXPECT_EQ(device.StreamWait(stream, event), kTryLater);
    // The legacy default stream waits for blocking streams.
    if (flags == cudaStreamDefault) {
      EXPECT_EQ(device.StreamWait(nullptr, event), kTryLater);
    }
    EXPECT_TRUE(calls.empty());
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(device.StreamWait(flags == cudaStreamDefault ? nullptr : stream, event), 0);
    EXPECT_THAT(calls, ElementsAre(Pair("cudaStreamWaitEvent", 1)));
  }
}

TEST_F(CudaDeviceTest, AFailureIsToldByNumberAndName) {
  Engine engine;
  ASSERT_TRUE(engine.Begin(1, 8).ok());
  cuda_model::settings.failing = cudaErrorLaunchFailure;
  ASSERT_TRUE(engine.session->Submit(StepId(1)).ok());
  engine.ExpectMissing(1, 8, Reason::kNotCaptured);
  EXPECT_EQ(std::string(engine.session->status().message()),
            "staged transport on cuda:0: could not pack the rows of a step: cudaErrorOfTheTest "
            "(719): made up");
}

TEST_F(CudaDeviceTest, CreateNamesWhatIsWrong) {
  EXPECT_EQ(std::string(CudaDevice::Create(2).status().message()),
            "ordinal: must be in [0, 1]; it is 2");
  EXPECT_EQ(std::string(CudaDevice::Create(-1).status().message()),
            "ordinal: must be in [0, 1]; it is -1");
  cuda_model::settings.failing = cudaErrorMemoryAllocation;
  EXPECT_EQ(Traits::device->AllocateMemory(7).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace waymark
