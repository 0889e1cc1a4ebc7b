// A CUDA runtime without a device and a driver, for tests of what Waymark calls and of what it does
// when a call fails. Link fake_cuda.cc: it defines the functions of the runtime, so that the linker
// does not take them from CUDA's library. What is enqueued runs on the host, at once; a launch does
// nothing. Device memory is host memory, and all of it is 0 at first.
#ifndef WAYMARK_TESTS_SUPPORT_FAKE_CUDA_H_
#define WAYMARK_TESTS_SUPPORT_FAKE_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace waymark::fake_cuda {

// What the runtime returns from now on. One thread sets it, while no other is in a call.
struct Settings {
  cudaError_t failing = cudaSuccess;  // what calls that enqueue or allocate return
  std::int64_t failing_call = 0;      // this call fails alone, counted from Reset; 0: none
  bool capturing = false;             // every stream is being captured
  bool other_captures = false;        // a stream that the legacy default one synchronises with is
  int not_ready = 0;                  // this many queries of events return cudaErrorNotReady
  cudaMemoryType memory_type = cudaMemoryTypeDevice;  // of every pointer
};
Settings& settings();
// Default settings; no device has a context, nor this thread; and no call was made.
void Reset();

// The number of calls since Reset, of all threads; without those that ask for the last error.
std::int64_t NumCalls();
// The calls of this thread since Forget, by name; without those that neither enqueue, allocate,
// free nor wait.
std::map<std::string, int> CallsOfThisThread();
void Forget();
int current_device();  // of this thread
std::vector<int> DevicesWithContext();
// Makes `error` the last error of this thread.
void SetLastError(cudaError_t error);

// For functions that a test defines beside these: counts a call, and returns what it returns.
cudaError_t Call(const char* name);

}  // namespace waymark::fake_cuda

#endif  // WAYMARK_TESTS_SUPPORT_FAKE_CUDA_H_
