// Which calls make a context: half a gigabyte of a device's memory, so that no rank may make one on
// the device of another. tests/support/cuda_model.cc models what is seen here. The tests run in
// this order, in one process.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <thread>

#include "plugin/capture/cuda_device.h"
#include "tests/gpu/cuda_support.h"

namespace waymark {
namespace {

template <class Call>
Call* Find(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result),
            cudaSuccess);
  return reinterpret_cast<Call*>(found);
}

bool HasContext() {
  unsigned flags = 0;
  int active = -1;
  auto* const state = Find<CUresult(CUdevice, unsigned*, int*)>("cuDevicePrimaryCtxGetState");
  EXPECT_EQ(state(0, &flags, &active), CUDA_SUCCESS);
  return active != 0;
}

bool ThreadHasContext() {
  CUcontext context = nullptr;
  EXPECT_EQ(Find<CUresult(CUcontext*)>("cuCtxGetCurrent")(&context), CUDA_SUCCESS);
  return context != nullptr;
}

// Not CudaTest, which makes one.
class Contexts : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no device";
  }
};

TEST_F(Contexts, WhatOnlyAsksMakesNone) {
  int value = 0;
  EXPECT_EQ(cudaGetDevice(&value), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_FALSE(HasContext());
}

// Reported, not asserted: why CudaDevice pushes its context before it calls anything else.
TEST_F(Contexts, WhatTheCaptureModeMakes) {
  std::thread([] {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    RecordProperty("cudaThreadExchangeStreamCaptureMode", HasContext() ? 1 : 0);
    printf("cudaThreadExchangeStreamCaptureMode makes %s context\n", HasContext() ? "a" : "no");
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    printf("cudaSetDevice makes %s context\n", HasContext() ? "a" : "no");
  }).join();
}

TEST_F(Contexts, ADeviceLeavesNoneOnTheThread) {
  std::thread([] {
    const std::shared_ptr<CudaDevice> device = CudaDevice::Create(0).value();
    void* const memory = device->AllocateMemory(1 << 20).value();
    DeviceStream const stream = device->CreateStream().value();
    DeviceEvent const event = device->CreateEvent().value();
    EXPECT_EQ(device->Zero(memory, 1 << 20, stream), 0);
    EXPECT_EQ(device->Record(event, stream), 0);
    device->Synchronize(stream);
    EXPECT_EQ(device->Query(event), Device::State::kDone);
    device->DestroyEvent(event);
    device->DestroyStream(stream);
    device->FreeMemory(memory);
    EXPECT_FALSE(ThreadHasContext());
    EXPECT_TRUE(HasContext());
  }).join();
}

}  // namespace
}  // namespace waymark
