// What CUDA refuses while a stream is in capture, and what becomes of the graph: as
// tests/support/cuda_model.cc has it.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/gpu/cuda_support.h"

namespace waymark::kernels {
namespace {

class CaptureStates : public CudaTest {};

TEST_F(CaptureStates, WhatIsRefusedAndWhatBecomesOfTheGraph) {
  const DeviceArray<std::uint8_t> memory(64);
  cudaEvent_t inside = nullptr, outside = nullptr;
  for (cudaEvent_t* const event : {&inside, &outside})
    ExpectCuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event");
  cudaStream_t stream = nullptr, forked = nullptr;
  const auto elsewhere = [](auto call) {
    cudaError_t error = cudaSuccess;
    std::thread([&] { error = call(); }).join();
    return error;
  };
  const auto set = [&](cudaStream_t on) { return cudaMemsetAsync(memory.data(), 1, 64, on); };
  cudaGraph_t graph = nullptr;
  const struct {
    const char* call;
    std::function<cudaError_t()> run;
    cudaError_t error, end;  // of the call, and of the end of the capture
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  } cases[] = {
      {"nothing", [] { return cudaSuccess; }, cudaSuccess, cudaSuccess},
      {"synchronize the stream", [&] { return cudaStreamSynchronize(stream); },
       cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated},
      {"synchronize the device", [&] { return elsewhere(cudaDeviceSynchronize); },
       cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated},
      {"query, on another thread",
       [&] { return elsewhere([&] { return cudaEventQuery(outside); }); },
       cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated},
      {"the same", [&] { return elsewhere([&] { return cudaEventQuery(outside); }); }, cudaSuccess,
       cudaSuccess, cudaStreamCaptureModeThreadLocal},
      {"query of the capture's event", [&] { return cudaEventQuery(inside); },
       cudaErrorCapturedEvent, cudaErrorStreamCaptureInvalidated},
      {"wait for what is outside", [&] { return cudaStreamWaitEvent(stream, outside, 0); },
       cudaErrorStreamCaptureIsolation, cudaErrorStreamCaptureInvalidated},
      {"the default stream", [&] { return set(nullptr); }, cudaErrorStreamCaptureImplicit,
       cudaErrorStreamCaptureInvalidated},
      {"a fork", [&] { return cudaStreamWaitEvent(forked, inside, 0), set(forked); }, cudaSuccess,
       cudaErrorStreamCaptureUnjoined},
      {"a fork, joined",
       [&] {
         (void)(cudaStreamWaitEvent(forked, inside, 0), set(forked));
         return cudaEventRecord(inside, forked), cudaStreamWaitEvent(stream, inside, 0);
       },
       cudaSuccess, cudaSuccess},
      {"the end on a fork",
       [&] { return cudaStreamWaitEvent(forked, inside, 0), cudaStreamEndCapture(forked, &graph); },
       cudaErrorStreamCaptureUnmatched, cudaErrorStreamCaptureInvalidated},
      {"two captures",
       [&] {
         (void)cudaStreamBeginCapture(forked, cudaStreamCaptureModeGlobal);
         const cudaError_t error = cudaStreamWaitEvent(forked, inside, 0);
         return (void)cudaStreamEndCapture(forked, &graph), error;
       },
       cudaErrorStreamCaptureMerge, cudaErrorStreamCaptureInvalidated}};
  for (const auto& of : cases) {
    SCOPED_TRACE(of.call);
    ExpectCuda(cudaStreamCreateWithFlags(&stream, cudaStreamDefault), "stream");
    ExpectCuda(cudaStreamCreateWithFlags(&forked, cudaStreamNonBlocking), "stream");
    ExpectCuda(cudaEventRecord(outside, forked), "record");
    ExpectCuda(cudaStreamSynchronize(forked), "synchronize");
    ExpectCuda(cudaStreamBeginCapture(stream, of.mode), "begin");
    ExpectCuda(set(stream), "a node");
    ExpectCuda(cudaEventRecord(inside, stream), "record");
    EXPECT_EQ(of.run(), of.error);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), of.end);
    if (of.end == cudaSuccess) ExpectCuda(cudaGraphDestroy(graph), "destroy");
    (void)cudaGetLastError();
    ExpectCuda(cudaStreamDestroy(stream), "destroy");
    ExpectCuda(cudaStreamDestroy(forked), "destroy");
  }
  // Behind its end, nobody waits for an event of a capture.
  EXPECT_EQ(cudaStreamWaitEvent(nullptr, inside, 0), cudaErrorCapturedEvent);
  (void)cudaGetLastError();
  ExpectCuda(cudaEventDestroy(inside), "destroy");
  ExpectCuda(cudaEventDestroy(outside), "destroy");
}

}  // namespace
}  // namespace waymark::kernels
