// What benchmarks on a CUDA device are made of: memory, and graphs whose runs are timed.
#ifndef WAYMARK_TESTS_BENCH_GPU_GPU_BENCH_H_
#define WAYMARK_TESTS_BENCH_GPU_GPU_BENCH_H_

#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

namespace waymark::bench {

// Aborts with a message: a benchmark that measures failures measures nothing.
inline void Demand(int error, const char* what) {
  if (error == 0) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::abort();
}

// Device memory.
struct Free {
  void operator()(std::uint8_t* memory) const { Demand(cudaFree(memory), "cudaFree"); }
};
using Memory = std::unique_ptr<std::uint8_t, Free>;

inline Memory Allocate(std::size_t bytes) {
  void* memory = nullptr;
  Demand(cudaMalloc(&memory, bytes), "cudaMalloc");
  return Memory(static_cast<std::uint8_t*>(memory));
}

// A graph, and how long its runs took.
class TimedGraph {
 public:
  TimedGraph(cudaStream_t stream, const std::function<void()>& record) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    Demand(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    record();
    Demand(cudaStreamEndCapture(stream, &graph), "end capture");
    Demand(cudaGraphInstantiate(&executable_, graph, 0), "instantiate");
    Demand(cudaGraphDestroy(graph), "destroy graph");
    Demand(cudaEventCreate(&begin_), "create event");
    Demand(cudaEventCreate(&end_), "create event");
  }
  ~TimedGraph() {
    Demand(cudaGraphExecDestroy(executable_), "destroy graph");
    Demand(cudaEventDestroy(begin_), "destroy event");
    Demand(cudaEventDestroy(end_), "destroy event");
  }
  TimedGraph(const TimedGraph&) = delete;
  TimedGraph& operator=(const TimedGraph&) = delete;

  // Seconds of one run.
  double Run() {
    Demand(cudaEventRecord(begin_, stream_), "record");
    Demand(cudaGraphLaunch(executable_, stream_), "launch");
    Demand(cudaEventRecord(end_, stream_), "record");
    Demand(cudaEventSynchronize(end_), "wait");
    float milliseconds = 0;
    Demand(cudaEventElapsedTime(&milliseconds, begin_, end_), "elapsed");
    seconds_.push_back(double{milliseconds} / 1e3);
    return seconds_.back();
  }
  [[nodiscard]] double Median() const {
    std::vector<double> sorted = seconds_;
    std::nth_element(sorted.begin(),
                     sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
    return sorted[sorted.size() / 2];
  }
  void Forget() { seconds_.clear(); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::vector<double> seconds_;
};

inline bool SkipsWithoutDevice(benchmark::State& state) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return false;
  state.SkipWithError(error == cudaSuccess ? "no CUDA device" : cudaGetErrorString(error));
  return true;
}

}  // namespace waymark::bench

#endif  // WAYMARK_TESTS_BENCH_GPU_GPU_BENCH_H_
