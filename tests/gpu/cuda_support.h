// What tests on a CUDA device share. Every failure of CUDA's is a failure of the test.
#ifndef WAYMARK_TESTS_GPU_CUDA_SUPPORT_H_
#define WAYMARK_TESTS_GPU_CUDA_SUPPORT_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace waymark::kernels {

inline void ExpectCuda(cudaError_t error, const char* what) {
  EXPECT_EQ(error, cudaSuccess) << what << ": " << cudaGetErrorString(error);
}

// Why no device can be used here, "" if one can. A machine without a device or without a driver is
// none to test on; any other error is one to look into.
inline const std::string& NoCuda() {
  static const auto* const why = [] {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice) {
      return new std::string(cudaGetErrorString(error));
    }
    ExpectCuda(error, "cudaGetDeviceCount");
    return new std::string(error == cudaSuccess && devices == 0 ? "no CUDA device" : "");
  }();
  return *why;
}

// Skips where there is no device. Nothing may be left in CUDA's error state.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!NoCuda().empty()) GTEST_SKIP() << NoCuda();
    ExpectCuda(cudaSetDevice(0), "cudaSetDevice");
  }
  void TearDown() override {
    if (!NoCuda().empty()) return;
    ExpectCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    ExpectCuda(cudaGetLastError(), "left behind");
  }
};

class CudaStream {
 public:
  CudaStream() {
    ExpectCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~CudaStream() { ExpectCuda(cudaStreamDestroy(stream_), "cudaStreamDestroy"); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  [[nodiscard]] cudaStream_t get() const { return stream_; }
  void Synchronize() const { ExpectCuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Elements on the current device.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    ExpectCuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), "cudaMalloc");
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { Set(host); }
  ~DeviceArray() { ExpectCuda(cudaFree(data_), "cudaFree"); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return size_ * sizeof(T); }
  // These wait: for the device, whatever stream it is busy with.
  void Set(const std::vector<T>& host, std::size_t first = 0) {
    ExpectCuda(
        cudaMemcpy(data_ + first, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
        "cudaMemcpy");
    ExpectCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void Fill(int byte) {
    ExpectCuda(cudaMemset(data_, byte, bytes()), "cudaMemset");
    ExpectCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  [[nodiscard]] std::vector<T> Get() const { return Get(0, size_); }
  [[nodiscard]] std::vector<T> Get(std::size_t first, std::size_t count) const {
    std::vector<T> host(count);
    ExpectCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    ExpectCuda(cudaMemcpy(host.data(), data_ + first, count * sizeof(T), cudaMemcpyDeviceToHost),
               "cudaMemcpy");
    return host;
  }

 private:
  std::size_t size_;
  T* data_ = nullptr;
};

// What is launched between Begin and End, as a graph. Done again, it updates the executable one.
class CudaGraph {
 public:
  CudaGraph() = default;
  ~CudaGraph() {
    if (executable_ != nullptr) ExpectCuda(cudaGraphExecDestroy(executable_), "destroy");
    if (graph_ != nullptr) ExpectCuda(cudaGraphDestroy(graph_), "cudaGraphDestroy");
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Global: the mode that refuses most of what else the thread, or another, calls meanwhile.
  void Begin(const CudaStream& stream) {
    ExpectCuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "begin capture");
  }
  // Returns the number of nodes.
  std::size_t End(const CudaStream& stream) {
    if (graph_ != nullptr) ExpectCuda(cudaGraphDestroy(graph_), "cudaGraphDestroy");
    renewed_ = true;
    ExpectCuda(cudaStreamEndCapture(stream.get(), &graph_), "end capture");
    std::size_t nodes = 0;
    ExpectCuda(cudaGraphGetNodes(graph_, nullptr, &nodes), "cudaGraphGetNodes");
    return nodes;
  }
  void Launch(const CudaStream& stream) {
    if (executable_ == nullptr) {
      ExpectCuda(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
    } else if (renewed_) {
      cudaGraphExecUpdateResultInfo info{};
      ExpectCuda(cudaGraphExecUpdate(executable_, graph_, &info), "cudaGraphExecUpdate");
    }
    renewed_ = false;
    ExpectCuda(cudaGraphLaunch(executable_, stream.get()), "cudaGraphLaunch");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  bool renewed_ = false;  // graph_ is not what was launched last
};

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_GPU_CUDA_SUPPORT_H_
