#include "plugin/capture/cuda_device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda_last_error.h"
#include "kernels/pack_cuda.h"

namespace waymark {
namespace {

template <class Call>
Call* Find(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  (void)cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  return reinterpret_cast<Call*>(found);
}

// The driver's calls on contexts; null where it lacks one. They are found through the runtime,
// since a library that is linked with the driver does not load where there is none.
struct Driver {
  CUresult (*const push)(CUcontext) = Find<CUresult(CUcontext)>("cuCtxPushCurrent");
  CUresult (*const pop)(CUcontext*) = Find<CUresult(CUcontext*)>("cuCtxPopCurrent");
  CUresult (*const retain)(CUcontext*, CUdevice) =
      Find<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain");
};
const Driver& TheDriver() {
  static const Driver driver;
  return driver;
}

// Makes a context the current one of this thread for as long as it lives, and leaves the thread's
// last error as it was; and keeps what this thread asks meanwhile, about events above all, from
// spoiling a graph that another one is capturing. cudaSetDevice would make a context on the device
// to which it goes back, of half a gigabyte: on GPU 0, for a thread that never chose one.
class Current {
 public:
  explicit Current(CUcontext context) : pushed_(TheDriver().push(context) == CUDA_SUCCESS) {
    exchanged_ = cudaThreadExchangeStreamCaptureMode(&capture_mode_) == cudaSuccess;
  }
  ~Current() {
    if (exchanged_) (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
    CUcontext ours = nullptr;
    if (pushed_) (void)TheDriver().pop(&ours);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const kernels::KeepLastError keep_;  // the first member: it is destroyed after all calls
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;  // ours, then the one before
  const bool pushed_;
  bool exchanged_ = false;
};

std::string Text(cudaError_t error) {
  return std::string(cudaGetErrorName(error)) + " (" + std::to_string(static_cast<int>(error)) +
         "): " + cudaGetErrorString(error);
}

cudaStream_t ToStream(DeviceStream stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t ToEvent(DeviceEvent event) {
  return static_cast<cudaEvent_t>(event);
}

// What `make(T*)`, a call of the runtime, has made on the device.
template <class T, class Make>
absl::StatusOr<void*> Made(CUcontext context, const std::string& device, const std::string& what,
                           Make make) {
  const Current current(context);
  T made = nullptr;
  if (const cudaError_t error = make(&made); error != cudaSuccess) {
    return absl::ResourceExhaustedError(device + ": could not " + what + ": " + Text(error));
  }
  return static_cast<void*>(made);
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaDevice>> CudaDevice::Create(std::int32_t ordinal) {
  const kernels::KeepLastError keep;
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return absl::UnavailableError("CudaDevice: no device can be used: " + Text(error));
  }
  if (ordinal < 0 || ordinal >= count) {
    return absl::UnavailableError("ordinal: must be in [0, " + std::to_string(count - 1) +
                                  "]; it is " + std::to_string(ordinal));
  }
  int major = 0;
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
      error != cudaSuccess || major < 8) {
    return absl::UnavailableError(
        "CudaDevice " + std::to_string(ordinal) + ": must be of sm_80 or later; " +
        (error != cudaSuccess ? Text(error) : "its major version is " + std::to_string(major)));
  }
  // A CUdevice is the ordinal. As the runtime's, the context is kept until the process ends.
  CUcontext context = nullptr;
  const Driver& driver = TheDriver();
  if (driver.push == nullptr || driver.pop == nullptr || driver.retain == nullptr ||
      driver.retain(&context, ordinal) != CUDA_SUCCESS) {
    return absl::UnavailableError("CudaDevice " + std::to_string(ordinal) + ": gives no context");
  }
  return std::shared_ptr<CudaDevice>(new CudaDevice(ordinal, context));
}

CudaDevice::CudaDevice(std::int32_t ordinal, CUctx_st* context)
    : context_(context), name_("cuda:" + std::to_string(ordinal)) {}

std::string CudaDevice::ErrorText(DeviceError error) const {
  return Text(static_cast<cudaError_t>(error));
}

absl::StatusOr<void*> CudaDevice::AllocateMemory(std::size_t bytes) {
  return Made<void*>(context_, name_, "allocate " + std::to_string(bytes) + " bytes",
                     [bytes](void** to) { return cudaMalloc(to, bytes); });
}

absl::StatusOr<void*> CudaDevice::AllocatePinned(std::size_t bytes) {
  return Made<void*>(
      context_, name_, "pin " + std::to_string(bytes) + " bytes of host memory",
      [bytes](void** to) { return cudaHostAlloc(to, bytes, cudaHostAllocPortable); });
}

void CudaDevice::FreeMemory(void* memory) {
  const Current current(context_);
  (void)cudaFree(memory);
}

void CudaDevice::FreePinned(void* memory) {
  const Current current(context_);
  (void)cudaFreeHost(memory);
}

absl::StatusOr<DeviceStream> CudaDevice::CreateStream() {
  return Made<cudaStream_t>(context_, name_, "make a stream", [](cudaStream_t* to) {
    return cudaStreamCreateWithFlags(to, cudaStreamNonBlocking);
  });
}

absl::StatusOr<DeviceEvent> CudaDevice::CreateEvent() {
  return Made<cudaEvent_t>(context_, name_, "make an event", [](cudaEvent_t* to) {
    return cudaEventCreateWithFlags(to, cudaEventDisableTiming);
  });
}

void CudaDevice::DestroyStream(DeviceStream stream) {
  const Current current(context_);
  (void)cudaStreamDestroy(ToStream(stream));
}

void CudaDevice::DestroyEvent(DeviceEvent event) {
  const Current current(context_);
  (void)cudaEventDestroy(ToEvent(event));
}

void CudaDevice::Synchronize(DeviceStream stream) {
  const Current current(context_);
  (void)cudaStreamSynchronize(ToStream(stream));
}

DeviceError CudaDevice::Pack(const kernels::PackLaunch& launch, DeviceStream stream) {
  const Current current(context_);
  return kernels::PackRowsOnCuda(launch, ToStream(stream));
}

DeviceError CudaDevice::CaptureIds(const kernels::IdsView& ids, std::int32_t rows,
                                   std::int32_t top_k, std::int16_t* view, DeviceStream stream) {
  const Current current(context_);
  return kernels::CaptureIdsOnCuda(ids, rows, top_k, view, ToStream(stream));
}

DeviceError CudaDevice::Zero(void* memory, std::size_t bytes, DeviceStream stream) {
  const Current current(context_);
  return cudaMemsetAsync(memory, 0, bytes, ToStream(stream));
}

DeviceError CudaDevice::CopyToHost(void* to, const void* from, std::size_t bytes,
                                   DeviceStream stream) {
  const Current current(context_);
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, ToStream(stream));
}

DeviceError CudaDevice::Record(DeviceEvent event, DeviceStream stream) {
  const Current current(context_);
  return cudaEventRecord(ToEvent(event), ToStream(stream));
}

DeviceError CudaDevice::StreamWait(DeviceStream stream, DeviceEvent event) {
  const Current current(context_);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = cudaStreamIsCapturing(ToStream(stream), &capture);
      error != cudaSuccess) {
    if (error != cudaErrorStreamCaptureImplicit) return error;
    return kTryLater;  // the error concerns the other stream, whose capture continues
  }
  if (capture != cudaStreamCaptureStatusNone) return kTryLater;
  return cudaStreamWaitEvent(ToStream(stream), ToEvent(event), cudaEventWaitDefault);
}

std::uint32_t CudaDevice::Load(const std::uint32_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

Device::State CudaDevice::Query(DeviceEvent event) {
  const Current current(context_);
  switch (cudaEventQuery(ToEvent(event))) {
    case cudaSuccess:
      return State::kDone;
    case cudaErrorNotReady:
      return State::kPending;
    default:
      return State::kFailed;
  }
}

}  // namespace waymark
