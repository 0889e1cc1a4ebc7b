#include "tests/support/fake_cuda.h"

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace waymark::fake_cuda {
namespace {

Settings current;
std::atomic<std::int64_t> num_calls{0};
constexpr int kDevices = 2;
std::atomic<bool> has_context[kDevices];
// The devices of the contexts that the thread has pushed. As long as it has none, a call that needs
// a context makes one on device 0.
thread_local std::vector<int> contexts;
thread_local cudaError_t last_error = cudaSuccess;
std::mutex mutex;
std::map<std::thread::id, std::map<std::string, int>> calls;  // guarded by mutex

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// Whether the call that is made now fails alone.
bool FailsNow() {
  return ++num_calls == current.failing_call;
}

// A call that needs no context, and that CallsOfThisThread does not name.
cudaError_t Ask() {
  return Return(FailsNow() ? cudaErrorUnknown : cudaSuccess);
}

// A call that CallsOfThisThread does not name.
cudaError_t Quiet(cudaError_t otherwise = cudaSuccess) {
  has_context[current_device()] = true;
  return Return(FailsNow() ? cudaErrorUnknown : otherwise);
}

CUcontext ToContext(int of_device) {
  return reinterpret_cast<CUcontext>(static_cast<std::intptr_t>(of_device) + 1);
}
CUresult InDriver() {
  return FailsNow() ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
CUresult PushContext(CUcontext context) {
  const CUresult result = InDriver();
  if (result == CUDA_SUCCESS) {
    contexts.push_back(static_cast<int>(reinterpret_cast<std::intptr_t>(context) - 1));
  }
  return result;
}
CUresult PopContext(CUcontext* context) {
  *context = ToContext(contexts.back());
  contexts.pop_back();
  return InDriver();
}
CUresult RetainContext(CUcontext* context, CUdevice of_device) {
  has_context[of_device] = true;
  *context = ToContext(of_device);
  return InDriver();
}

void Count(const char* name) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++calls[std::this_thread::get_id()][name];
}

// A call that frees or waits.
cudaError_t Named(const char* name) {
  Count(name);
  return Quiet();
}

cudaError_t Allocate(const char* name, void** memory, std::size_t bytes) {
  const cudaError_t error = Call(name);
  if (error == cudaSuccess) *memory = std::calloc(bytes, 1);
  return error;
}

}  // namespace

Settings& settings() {
  return current;
}
void Reset() {
  current = {};
  num_calls = 0;
  for (std::atomic<bool>& has : has_context)
    has = false;
  contexts.clear();
  last_error = cudaSuccess;
  Forget();
}
std::int64_t NumCalls() {
  return num_calls;
}
std::map<std::string, int> CallsOfThisThread() {
  const std::lock_guard<std::mutex> lock(mutex);
  return calls[std::this_thread::get_id()];
}
void Forget() {
  const std::lock_guard<std::mutex> lock(mutex);
  calls.clear();
}
int current_device() {
  return contexts.empty() ? 0 : contexts.back();
}
std::vector<int> DevicesWithContext() {
  std::vector<int> devices;
  for (int device = 0; device < kDevices; ++device) {
    if (has_context[device]) devices.push_back(device);
  }
  return devices;
}
void SetLastError(cudaError_t error) {
  last_error = error;
}
cudaError_t Call(const char* name) {
  Count(name);
  return Quiet(current.failing);
}

}  // namespace waymark::fake_cuda

using namespace waymark::fake_cuda;  // NOLINT: what follows is outside of every namespace

extern "C" {
cudaError_t cudaPeekAtLastError() {
  return last_error;
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorName(cudaError_t) {
  return "cudaErrorOfTheTest";
}
const char* cudaGetErrorString(cudaError_t) {
  return "made up";
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return Quiet();
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return Ask();
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** call, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const std::map<std::string, void*> known = {
      {"cuCtxPushCurrent", reinterpret_cast<void*>(&PushContext)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(&PopContext)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&RetainContext)}};
  *call = known.at(name);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return Ask();
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 9;
  return Ask();
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return Allocate("cudaMalloc", memory, bytes);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return Allocate("cudaHostAlloc", memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return Named("cudaFree");
}
cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return Named("cudaFreeHost");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(0x100);
  return Call("cudaStreamCreateWithFlags");
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(0x200);
  return Call("cudaEventCreateWithFlags");
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return Quiet();
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
  return Quiet();
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return Named("cudaStreamSynchronize");
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return Call("cudaMemsetAsync");
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return Call("cudaMemcpyAsync");
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return Call("cudaEventRecord");
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  if (settings().other_captures) return Quiet(cudaErrorStreamCaptureImplicit);
  *status = settings().capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return Quiet();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return Call("cudaStreamWaitEvent");
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  if (settings().not_ready > 0) {
    --settings().not_ready;
    return Quiet(cudaErrorNotReady);
  }
  return Call("cudaEventQuery");
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  *attributes = {};
  attributes->type = settings().memory_type;
  attributes->device = current_device();
  return Call("cudaPointerGetAttributes");
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return Call("cudaLaunchKernel");
}

// What the compiler of the kernels adds to their files: they are registered when the program
// starts.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) {
  std::abort();  // of <<<>>>, which is not used
}
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) {
  std::abort();
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
  std::abort();
}
}
