#include "plugin/capture/nccl_collective.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "blockstore/timeout.h"
#include "kernels/cuda_last_error.h"

namespace waymark {
namespace {

constexpr auto kLookEvery = std::chrono::microseconds(20);

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));

// The functions of libnccl. Loaded, not linked: the process has the engine's, or none.
struct Nccl {
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  std::string missing;  // why there is none; empty: there is

  Nccl() {
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const why = dlerror();
      missing = why != nullptr ? why : "libnccl.so.2 cannot be loaded";
      return;
    }
    const auto load = [&](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && missing.empty()) {
        missing = std::string("libnccl.so.2 has no ") + name;
      }
    };
    load("ncclGetUniqueId", get_unique_id);
    load("ncclCommInitRankConfig", init);
    load("ncclCommGetAsyncError", async_error);
    load("ncclAllGather", all_gather);
    load("ncclCommAbort", abort);
    load("ncclGetErrorString", error_string);
  }
  static const Nccl& Get() {
    static const Nccl nccl;
    return nccl;
  }
  [[nodiscard]] absl::Status Check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
    return absl::UnavailableError(std::string("NCCL: could not ") + what + ": " +
                                  error_string(result));
  }
};

absl::Status CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(std::string("CUDA: could not ") + what + ": " +
                                cudaGetErrorString(error));
}

// Makes a device the current one of this thread for as long as it lives.
class Current {
 public:
  explicit Current(std::int32_t ordinal) {
    if (cudaGetDevice(&before_) != cudaSuccess || before_ == ordinal) return;
    changed_ = cudaSetDevice(ordinal) == cudaSuccess;
  }
  ~Current() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const kernels::KeepLastError keep_;  // the first member: it is destroyed after all calls
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace

class NcclCollective::Impl {
 public:
  explicit Impl(const NcclOptions& options) : options_(options) {}
  ~Impl() {
    const Current current(options_.device);
    if (communicator_ != nullptr) (void)Nccl::Get().abort(communicator_);
    // Work that hangs would keep the calls below waiting: its memory is given up.
    if (stream_ != nullptr && cudaStreamQuery(stream_) == cudaErrorNotReady) return;
    if (device_ != nullptr) (void)cudaFree(device_);
    if (pinned_ != nullptr) (void)cudaFreeHost(pinned_);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::Status Start() {
    const Current current(options_.device);
    const Nccl& nccl = Nccl::Get();
    const std::size_t bytes = options_.max_bytes * (static_cast<std::size_t>(options_.ranks) + 1);
    if (cudaMalloc(&device_, bytes) != cudaSuccess ||
        cudaHostAlloc(&pinned_, bytes, cudaHostAllocDefault) != cudaSuccess) {
      return absl::ResourceExhaustedError("NcclCollective: no memory for " + std::to_string(bytes) +
                                          " bytes on the device or pinned");
    }
    if (absl::Status status = CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                                        "create a stream");
        !status.ok()) {
      return status;
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // so that a rank that does not come ends in a deadline
    ncclUniqueId id;
    std::memcpy(&id, options_.id.data(), sizeof(id));
    deadline_ = std::chrono::steady_clock::now() + Clamped(options_.timeout);
    if (absl::Status status =
            nccl.Check(nccl.init(&communicator_, options_.ranks, id, options_.rank, &config),
                       "create a communicator");
        !status.ok()) {
      return status;
    }
    return Settle("create a communicator");
  }

  absl::Status AllGather(const void* send, void* receive, std::size_t bytes) {
    if (failed_) return absl::UnavailableError("NCCL: the communicator has failed before");
    if (bytes > options_.max_bytes) {
      return absl::InvalidArgumentError("bytes must be at most " +
                                        std::to_string(options_.max_bytes) + "; they are " +
                                        std::to_string(bytes));
    }
    const absl::Status status = Exchange(send, receive, bytes);
    if (!status.ok()) Fail();
    return status;
  }

  [[nodiscard]] const NcclOptions& options() const { return options_; }

 private:
  absl::Status Exchange(const void* send, void* receive, std::size_t bytes) {
    const Current current(options_.device);
    const Nccl& nccl = Nccl::Get();
    deadline_ = std::chrono::steady_clock::now() + Clamped(options_.timeout);
    auto* const device = static_cast<std::uint8_t*>(device_);
    auto* const pinned = static_cast<std::uint8_t*>(pinned_);
    const std::size_t all = bytes * static_cast<std::size_t>(options_.ranks);
    std::memcpy(pinned, send, bytes);
    absl::Status status = CheckCuda(
        cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream_), "copy rows");
    if (status.ok()) {
      status = nccl.Check(nccl.all_gather(device, device + options_.max_bytes, bytes, ncclUint8,
                                          communicator_, stream_),
                          "gather");
    }
    if (status.ok()) status = Settle("gather");
    if (status.ok()) {
      status = CheckCuda(cudaMemcpyAsync(pinned + options_.max_bytes, device + options_.max_bytes,
                                         all, cudaMemcpyDeviceToHost, stream_),
                         "copy gathered rows");
    }
    if (status.ok()) status = Finish();
    if (status.ok()) std::memcpy(receive, pinned + options_.max_bytes, all);
    return status;
  }

  // Waits until the last call of NCCL has been taken over.
  absl::Status Settle(const char* what) {
    const Nccl& nccl = Nccl::Get();
    for (;;) {
      ncclResult_t state = ncclSuccess;
      absl::Status status = nccl.Check(nccl.async_error(communicator_, &state), what);
      if (status.ok()) status = nccl.Check(state, what);
      if (!status.ok() || state == ncclSuccess) return status;
      if (std::chrono::steady_clock::now() >= deadline_) return Late(what);
      std::this_thread::sleep_for(kLookEvery);
    }
  }
  // Waits until the stream has done its work.
  absl::Status Finish() {
    const Nccl& nccl = Nccl::Get();
    for (;;) {
      const cudaError_t done = cudaStreamQuery(stream_);
      if (done != cudaErrorNotReady) return CheckCuda(done, "gather");
      ncclResult_t state = ncclSuccess;
      absl::Status status = nccl.Check(nccl.async_error(communicator_, &state), "gather");
      if (status.ok()) status = nccl.Check(state, "gather");
      if (!status.ok()) return status;
      if (std::chrono::steady_clock::now() >= deadline_) return Late("gather");
      std::this_thread::sleep_for(kLookEvery);
    }
  }
  static absl::Status Late(const char* what) {
    return absl::DeadlineExceededError(std::string("NCCL: could not ") + what +
                                       " in time: a rank is late or gone");
  }
  // Its kernels end by the abort; what they did is not read.
  void Fail() {
    failed_ = true;
    const Current current(options_.device);
    if (communicator_ != nullptr) (void)Nccl::Get().abort(std::exchange(communicator_, nullptr));
  }

  const NcclOptions options_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  void* device_ = nullptr;  // what is sent, then what is received
  void* pinned_ = nullptr;  // the same
  std::chrono::steady_clock::time_point deadline_;
  bool failed_ = false;
};

absl::StatusOr<NcclId> NcclCollective::NewId() {
  const Nccl& nccl = Nccl::Get();
  if (!nccl.missing.empty()) return absl::UnavailableError(nccl.missing);
  ncclUniqueId made;
  if (absl::Status status = nccl.Check(nccl.get_unique_id(&made), "make an id"); !status.ok()) {
    return status;
  }
  NcclId id;
  std::memcpy(id.data(), &made, sizeof(made));
  return id;
}

absl::StatusOr<std::unique_ptr<NcclCollective>> NcclCollective::Create(const NcclOptions& options) {
  const Collective as_given{options.rank, options.ranks,
                            [](void*, const void*, void*, std::size_t) { return 0; }, nullptr};
  if (absl::Status status = CheckCollective(as_given); !status.ok()) return status;
  if (options.max_bytes == 0 || options.max_bytes > std::size_t{1} << 32) {
    return absl::InvalidArgumentError("max_bytes must be in [1, 2^32]; it is " +
                                      std::to_string(options.max_bytes));
  }
  if (const Nccl& nccl = Nccl::Get(); !nccl.missing.empty()) {
    return absl::UnavailableError(nccl.missing);
  }
  int count = 0;
  {
    const kernels::KeepLastError keep;
    if (absl::Status status = CheckCuda(cudaGetDeviceCount(&count), "count the devices");
        !status.ok()) {
      return status;
    }
  }
  if (options.device < 0 || options.device >= count) {
    return absl::UnavailableError("device: must be in [0, " + std::to_string(count - 1) +
                                  "]; it is " + std::to_string(options.device));
  }
  auto impl = std::make_unique<Impl>(options);
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<NcclCollective>(new NcclCollective(std::move(impl)));
}

NcclCollective::NcclCollective(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NcclCollective::~NcclCollective() = default;

Collective NcclCollective::collective() {
  return {impl_->options().rank, impl_->options().ranks,
          [](void* context, const void* send, void* receive, std::size_t bytes) {
            return static_cast<std::int32_t>(
                static_cast<Impl*>(context)->AllGather(send, receive, bytes).code());
          },
          impl_.get()};
}

}  // namespace waymark
