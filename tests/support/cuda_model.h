// A model of the CUDA runtime on the host, without a device and a driver: the programs of
// tests/gpu run on it where there is no GPU. Link waymark_cuda_model: it defines the functions of
// the runtime, so that the linker does not take them from CUDA's library.
//
// Streams are queues of work, which runs when the model pleases: one operation of a stream chosen
// by seed (WAYMARK_SEED, or 1; printed), at calls of the runtime and, since the host may look at
// pinned memory alone, on a thread of its own. What is not ordered by stream or event runs in
// another order under another seed. The kernels of pack_cuda.h run as emulated blocks, others do
// nothing; the legacy default stream and blocking streams wait for each other. What is enqueued on
// a stream in capture becomes a node of a graph, with the arguments that it had; a call that CUDA
// refuses meanwhile has CUDA's error (900 to 908), and spoils the graph where CUDA says so. Two
// devices; their memory is the host's, and never cleared.
#ifndef WAYMARK_TESTS_SUPPORT_CUDA_MODEL_H_
#define WAYMARK_TESTS_SUPPORT_CUDA_MODEL_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace waymark::cuda_model {

// What the runtime returns from now on. One thread sets it, while no other is in a call.
struct Settings {
  cudaError_t failing = cudaSuccess;  // what calls that enqueue or allocate return
  std::int64_t failing_call = 0;      // this call fails alone, counted from Reset; 0: none
  bool at_once = false;               // what is enqueued runs in the call
  int not_ready = 0;                  // this many queries of events return cudaErrorNotReady
  cudaMemoryType memory_type = cudaMemoryTypeDevice;  // of every pointer
};
inline Settings settings;
// Default settings; no device has a context, nor this thread; and no call was made.
void Reset();

inline constexpr int kDevices = 2;
inline std::atomic<bool> has_context[kDevices];
inline std::atomic<std::int64_t> num_calls{0};  // without those that ask for the last error
// Of this thread. Calls that neither enqueue, allocate, free nor wait are not counted by name. A
// call that needs a context makes one on device 0, if the thread has none.
inline thread_local std::map<std::string, int> calls;
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local std::vector<int> contexts;  // their devices; the last one is current

}  // namespace waymark::cuda_model

#endif  // WAYMARK_TESTS_SUPPORT_CUDA_MODEL_H_
