#include "tests/support/cuda_model.h"

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/emulated_rows.h"

using namespace waymark::kernels;  // NOLINT: most is outside of every namespace
using Run = std::function<void(std::mt19937_64&)>;

// What CUDA's handles point to. A graph is its nodes, in the order in which they were captured.
struct CUgraph_st {
  std::vector<std::pair<const char*, Run>> nodes;
};
struct CUgraphExec_st : CUgraph_st {};
struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  cudaStream_t origin;
  CUgraph_st graph = {};
  bool spoiled = false;
  bool ended = false;
};
struct Work {
  Run run;
  std::vector<std::pair<cudaStream_t, std::uint64_t>> after;  // so much of these has to be done
};
struct CUstream_st {
  int device = 0;
  bool legacy = false;    // the default stream of its device
  bool blocking = false;  // waits for that one, and it for this
  bool destroyed = false;
  std::deque<Work> work = {};
  std::uint64_t enqueued = 0;
  std::uint64_t done = 0;
  std::shared_ptr<Capture> capture = nullptr;
  std::size_t last = 0;  // the number of nodes behind its last one; 0: it has joined another stream
};
struct CUevent_st {
  int device = 0;
  cudaStream_t stream = nullptr;  // of the last record
  std::uint64_t upto = 0;         // of its work, or of the nodes of the capture
  std::shared_ptr<Capture> capture = nullptr;
};

namespace waymark::cuda_model {
namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
int CurrentDevice() {
  return contexts.empty() ? 0 : contexts.back();
}

// What the device has, all of it under the mutex. Never destroyed: programs end while it works.
struct Model {
  Model() {
    const char* const text = std::getenv("WAYMARK_SEED");
    const auto seed = text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
    std::fprintf(stderr, "model of CUDA: WAYMARK_SEED=%llu\n", seed);
    random.seed(seed);
    for (int device = 0; device < kDevices; ++device)
      streams.push_back(new CUstream_st{.device = device, .legacy = true});
    std::thread([this] { RunForEver(); }).detach();
  }
  bool RunOne() {
    std::vector<cudaStream_t> able;
    for (cudaStream_t stream : streams) {
      if (!stream->work.empty() &&
          std::ranges::all_of(stream->work.front().after,
                              [](const auto& of) { return of.first->done >= of.second; })) {
        able.push_back(stream);
      }
    }
    if (able.empty()) return false;
    cudaStream_t stream = able[random() % able.size()];
    stream->work.front().run(random);
    stream->work.pop_front();
    ++stream->done;
    return true;
  }
  void RunSome(std::uint64_t most) {
    for (std::uint64_t left = random() % most; left > 0 && RunOne(); --left) {
    }
  }
  // All that `stream` has; null: all there is.
  void RunAll(cudaStream_t stream = nullptr) {
    while ((stream == nullptr || !stream->work.empty()) && RunOne()) {
    }
  }
  void RunForEver() {
    for (std::unique_lock<std::mutex> lock(mutex);; RunSome(12)) {
      wake.wait(lock, [this] {
        return std::ranges::any_of(streams, [](cudaStream_t of) { return !of->work.empty(); });
      });
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      lock.lock();
    }
  }

  std::mutex mutex;
  std::condition_variable wake;
  std::mt19937_64 random;
  std::vector<cudaStream_t> streams;                    // first the default ones
  std::map<const std::uint8_t*, std::size_t> memories;  // of devices, and pinned
};
Model& TheModel() {
  static auto* const model = new Model();
  return *model;
}

cudaError_t Return(cudaError_t error) {
  return error == cudaSuccess ? error : last_error = error;
}
// Whether the call that is made now fails alone.
bool FailsNow() {
  return ++num_calls == settings.failing_call;
}
// A call that needs no context.
cudaError_t Ask() {
  return Return(FailsNow() ? cudaErrorUnknown : cudaSuccess);
}
// Below, what is given as `body` is called under the mutex, and throws its error.
cudaError_t Quiet(cudaError_t otherwise = cudaSuccess) {
  if (contexts.empty()) contexts.push_back(0);
  has_context[contexts.back()] = true;
  return Return(FailsNow() ? cudaErrorUnknown : otherwise);
}
template <class Body>
cudaError_t Quiet(Body&& body) try {
  const cudaError_t error = Quiet();
  const std::lock_guard<std::mutex> lock(TheModel().mutex);
  if (error == cudaSuccess) body();
  return error;
} catch (cudaError_t error) {
  return Return(error);
}
// A call that frees or waits; and one that enqueues or allocates.
template <class Body>
cudaError_t Named(const char* name, Body&& body) {
  ++calls[name];
  return Quiet(body);
}
template <class Body>
cudaError_t Call(const char* name, Body&& body) {
  if (settings.failing == cudaSuccess) return Named(name, body);
  ++calls[name];
  return Quiet(settings.failing);
}

struct Driver {
  static CUcontext Of(int device) { return reinterpret_cast<CUcontext>(primary + device); }
  static CUresult Result() { return FailsNow() ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS; }
  static CUresult Push(CUcontext context) {
    const CUresult result = Result();
    if (result == CUDA_SUCCESS)
      contexts.push_back(static_cast<int>(reinterpret_cast<char*>(context) - primary));
    return result;
  }
  static CUresult Pop(CUcontext* context) {
    *context = Of(contexts.back());
    contexts.pop_back();
    return Result();
  }
  static CUresult Retain(CUcontext* context, CUdevice device) {
    has_context[device] = true;
    *context = Of(device);
    return Result();
  }
  static CUresult State(CUdevice device, unsigned*, int* active) {
    return *active = has_context[device], CUDA_SUCCESS;
  }
  static CUresult Current(CUcontext* context) {
    return *context = contexts.empty() ? nullptr : Of(contexts.back()), CUDA_SUCCESS;
  }
  static inline char primary[kDevices];  // their addresses are the contexts
};

// ---- under the mutex

cudaStream_t Known(cudaStream_t stream) {
  return stream != nullptr ? stream : TheModel().streams[static_cast<std::size_t>(CurrentDevice())];
}
void Refuse(bool refused, const std::shared_ptr<Capture>& spoiled, cudaError_t error) {
  if (!refused) return;
  if (spoiled != nullptr) spoiled->spoiled = true;
  throw error;
}
// A default stream can do nothing while a stream for which it waits is in capture.
void RefuseImplicit(cudaStream_t stream, bool spoils) {
  for (cudaStream_t of : TheModel().streams) {
    Refuse(stream->legacy && of->blocking && of->device == stream->device && of->capture,
           spoils ? of->capture : nullptr, cudaErrorStreamCaptureImplicit);
  }
}
// A call that is unsafe beside captures, as the mode of the thread and theirs say.
void RefuseUnsafe() {
  for (cudaStream_t stream : TheModel().streams) {
    const std::shared_ptr<Capture>& of = stream->capture;
    if (of == nullptr || thread_mode == cudaStreamCaptureModeRelaxed) continue;
    const bool own = of->thread == std::this_thread::get_id();
    Refuse((own && of->mode != cudaStreamCaptureModeRelaxed) ||
               (thread_mode == cudaStreamCaptureModeGlobal && of->mode == thread_mode),
           of, cudaErrorStreamCaptureUnsupported);
  }
}

void Enqueue(const char* what, cudaStream_t stream, Run run, Work work = {}) {
  RefuseImplicit(stream, true);
  if (Capture* const of = stream->capture.get()) {
    Refuse(of->spoiled, nullptr, cudaErrorStreamCaptureInvalidated);
    of->graph.nodes.emplace_back(what, std::move(run));
    stream->last = of->graph.nodes.size();
    return;
  }
  Model& model = TheModel();
  for (cudaStream_t of : model.streams) {
    if (of->device == stream->device &&
        (stream->legacy ? of->blocking : stream->blocking && of->legacy)) {
      work.after.emplace_back(of, of->enqueued);
    }
  }
  work.run = std::move(run);
  stream->work.push_back(std::move(work));
  ++stream->enqueued;
  if (settings.at_once) return model.RunAll();
  model.RunSome(4);
  model.wake.notify_one();
}

bool IsPageable(const void* memory) {
  const auto* const at = static_cast<const std::uint8_t*>(memory);
  const auto next = TheModel().memories.upper_bound(at);
  return next == TheModel().memories.begin() ||
         at >= std::prev(next)->first + std::prev(next)->second;
}
void Copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream, bool waits) {
  const bool captured = stream->capture != nullptr;
  const auto* const begin = static_cast<const std::uint8_t*>(from);
  std::vector<std::uint8_t> staged;
  if (!captured && IsPageable(from)) staged.assign(begin, begin + bytes);
  Enqueue("copy", stream, [=](auto&) {
    const std::uint8_t* const source = staged.empty() ? begin : staged.data();
    if (bytes != sizeof(std::uint32_t)) {
      std::copy_n(source, bytes, static_cast<std::uint8_t*>(to));
    } else {  // a word, which the host may be looking at
      std::uint32_t word = 0;
      std::memcpy(&word, source, sizeof(word));
      __atomic_store_n(static_cast<std::uint32_t*>(to), word, __ATOMIC_RELEASE);
    }
  });
  if (!captured && (waits || IsPageable(to))) TheModel().RunAll(stream);
}
cudaError_t Allocate(const char* name, void** memory, std::size_t bytes) {
  return Call(name, [=] {
    RefuseUnsafe();
    const std::size_t rounded = (bytes / 256 + 1) * 256;
    *memory = std::memset(std::aligned_alloc(256, rounded), 0x5a, rounded);
    TheModel().memories[static_cast<std::uint8_t*>(*memory)] = rounded;
  });
}
cudaError_t Free(const char* name, void* memory) {
  return Named(name, [=] {
    RefuseUnsafe();
    TheModel().RunAll();
    TheModel().memories.erase(static_cast<std::uint8_t*>(memory));
    std::free(memory);
  });
}

// The names of kernels, by their addresses.
std::map<const void*, std::string>& Kernels() {
  static auto* const kernels = new std::map<const void*, std::string>();
  return *kernels;
}
// A launch of kernel(const Plan&) by emulated blocks.
template <class Plan>
Run Emulated(const void* plan) {
  return [of = *static_cast<const Plan*>(plan)](auto& random) { RunEmulated(of, random); };
}

}  // namespace

void Reset() {
  const std::lock_guard<std::mutex> lock(TheModel().mutex);
  TheModel().RunAll();
  settings = {};
  num_calls = 0;
  for (std::atomic<bool>& has : has_context)
    has = false;
  contexts.clear();
  last_error = cudaSuccess;
  calls.clear();
}
}  // namespace waymark::cuda_model

using namespace waymark::cuda_model;  // NOLINT: as above

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
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return Quiet([=] { std::swap(*mode, thread_mode); });
}
cudaError_t cudaGetDevice(int* device) {
  *device = CurrentDevice();
  return Ask();
}
cudaError_t cudaSetDevice(int device) {
  if (contexts.empty()) contexts.push_back(device);
  contexts.back() = device;
  return Quiet();
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** call, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const std::map<std::string, void*> known = {
      {"cuCtxPushCurrent", reinterpret_cast<void*>(&Driver::Push)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(&Driver::Pop)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(&Driver::Current)},
      {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(&Driver::State)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&Driver::Retain)}};
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
cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* total) {
  *left = *total = std::size_t{1} << 30;  // tests that take more skip
  return Quiet();
}
cudaError_t cudaDeviceSynchronize() {
  return Quiet([] {
    for (cudaStream_t of : TheModel().streams) {
      Refuse(of->device == CurrentDevice() && of->capture, of->capture,
             cudaErrorStreamCaptureUnsupported);
    }
    RefuseUnsafe();
    TheModel().RunAll();
  });
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return Allocate("cudaMalloc", memory, bytes);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return Allocate("cudaHostAlloc", memory, bytes);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return Allocate("cudaMallocHost", memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  return Free("cudaFree", memory);
}
cudaError_t cudaFreeHost(void* memory) {
  return Free("cudaFreeHost", memory);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return Call("cudaMemsetAsync", [=] {
    Enqueue("set", Known(stream), [=](auto&) { std::memset(to, value, bytes); });
  });
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return Call("cudaMemcpyAsync", [=] { Copy(to, from, bytes, Known(stream), false); });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return Call("cudaMemcpy", [=] {
    RefuseUnsafe();
    Copy(to, from, bytes, Known(nullptr), true);
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return Call("cudaStreamCreateWithFlags", [=] {
    *stream = new CUstream_st{.device = CurrentDevice(), .blocking = flags == cudaStreamDefault};
    TheModel().streams.push_back(*stream);
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Quiet([=] {
    stream->destroyed = true;  // what is enqueued still runs
    std::erase_if(TheModel().streams, [](auto of) { return of->destroyed && of->work.empty(); });
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Named("cudaStreamSynchronize", [of = Known(stream)] {
    RefuseImplicit(of, true);
    Refuse(of->capture != nullptr, of->capture, cudaErrorStreamCaptureUnsupported);
    RefuseUnsafe();
    TheModel().RunAll(of);
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return Call("cudaStreamWaitEvent", [=, of = Known(stream)] {
    if (const std::shared_ptr<Capture>& other = event->capture) {
      Refuse(other->ended || of->legacy, nullptr, cudaErrorCapturedEvent);
      if (of->capture != nullptr && of->capture != other) {
        other->spoiled = true;
        Refuse(true, of->capture, cudaErrorStreamCaptureMerge);
      }
      of->capture = other;
      if (event->stream->last <= event->upto) event->stream->last = 0;
      of->last = event->upto;
    } else if (event->stream != nullptr) {
      Refuse(of->capture != nullptr, of->capture, cudaErrorStreamCaptureIsolation);
      Enqueue("wait", of, [](auto&) {}, {.after = {{event->stream, event->upto}}});
    }
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return Call("cudaEventCreateWithFlags",
              [=] { *event = new CUevent_st{.device = CurrentDevice()}; });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return Quiet();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call("cudaEventRecord", [=, on = Known(stream)] {
    Refuse(on->device != event->device, nullptr, cudaErrorInvalidResourceHandle);
    const std::shared_ptr<Capture>& of = on->capture;
    Refuse(of && of->spoiled, nullptr, cudaErrorStreamCaptureInvalidated);
    if (!of) Enqueue("record", on, [](auto&) {});
    *event = {on->device, on, of ? of->graph.nodes.size() : on->enqueued, of};
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (settings.not_ready-- > 0) return Quiet(cudaErrorNotReady);
  return Call("cudaEventQuery", [=] {
    Refuse(event->capture != nullptr, event->capture, cudaErrorCapturedEvent);
    RefuseUnsafe();
    TheModel().RunSome(4);
    Refuse(event->stream != nullptr && event->stream->done < event->upto, nullptr,
           cudaErrorNotReady);
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return Quiet([=, of = Known(stream)] {
    Refuse(of->legacy, nullptr, cudaErrorStreamCaptureUnsupported);
    Refuse(of->capture != nullptr, nullptr, cudaErrorIllegalState);
    of->capture = std::make_shared<Capture>(Capture{mode, std::this_thread::get_id(), of});
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return Quiet([=] {
    *graph = nullptr;
    const std::shared_ptr<Capture> capture = Known(stream)->capture;
    Refuse(capture == nullptr, nullptr, cudaErrorIllegalState);
    Refuse(capture->origin != stream, capture, cudaErrorStreamCaptureUnmatched);
    Refuse(capture->mode != cudaStreamCaptureModeRelaxed &&
               capture->thread != std::this_thread::get_id(),
           capture, cudaErrorStreamCaptureWrongThread);
    capture->ended = true;
    bool joined = true;
    for (cudaStream_t of : TheModel().streams) {
      if (of->capture != capture) continue;
      joined = joined && (of == stream || of->last == 0);
      of->capture = nullptr;
      of->last = 0;
    }
    Refuse(capture->spoiled, nullptr, cudaErrorStreamCaptureInvalidated);
    Refuse(!joined, nullptr, cudaErrorStreamCaptureUnjoined);
    *graph = new CUgraph_st(capture->graph);
  });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return Quiet([=, of = Known(stream)] {
    RefuseImplicit(of, false);
    *status = of->capture == nullptr ? cudaStreamCaptureStatusNone
              : of->capture->spoiled ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
  });
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* count) {
  *count = graph == nullptr ? 0 : graph->nodes.size();
  return Quiet(graph == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  if (graph == nullptr) return Quiet(cudaErrorInvalidValue);
  *made = new CUgraphExec_st{*graph};
  return Quiet();
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t of, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo*) {
  return Quiet([=] {
    const auto name = [](const auto& node) { return node.first; };
    Refuse(!std::ranges::equal(of->nodes, graph->nodes, {}, name, name), nullptr,
           cudaErrorGraphExecUpdateFailure);
    of->nodes = graph->nodes;
  });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t of, cudaStream_t stream) {
  return Call("cudaGraphLaunch", [=] {
    Refuse(of == nullptr, nullptr, cudaErrorInvalidValue);
    for (const auto& [what, run] : of->nodes)
      Enqueue(what, Known(stream), run);
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t of) {
  delete of;
  return Quiet();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return Quiet();
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  *attributes = {.type = settings.memory_type, .device = CurrentDevice()};
  return Call("cudaPointerGetAttributes", [] {});
}
// Routing is launched, and does nothing.
cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void** arguments, std::size_t,
                             cudaStream_t stream) {
  return Call("cudaLaunchKernel", [=, on = Known(stream)] {
    Refuse(on->device != CurrentDevice(), nullptr, cudaErrorInvalidResourceHandle);
    const std::string& name = Kernels().at(kernel);
    const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
    Enqueue(
        name.c_str(), on,
        is("CaptureKernel")  ? Emulated<device::CapturePlan>(arguments[0])
        : is("PackKernel")   ? Emulated<device::PackPlan>(arguments[0])
        : is("GatherKernel") ? Emulated<device::GatherPlan>(arguments[0])
                             : [](auto&) {});
  });
}
// What the compiler of the kernels adds to their files: they are registered when the program
// starts.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  Kernels()[kernel] = name;
}
// Of <<<>>>, which is not used.
void __cudaPopCallConfiguration() {
  std::abort();
}
void __cudaGetKernel() __attribute__((alias("__cudaPopCallConfiguration")));
void __cudaLaunchKernel() __attribute__((alias("__cudaPopCallConfiguration")));
}
