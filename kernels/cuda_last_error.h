// KeepLastError: calls of the CUDA runtime that leave the caller's last error as it was.
#ifndef WAYMARK_KERNELS_CUDA_LAST_ERROR_H_
#define WAYMARK_KERNELS_CUDA_LAST_ERROR_H_

#include <cuda_runtime_api.h>

namespace waymark::kernels {

// CUDA keeps, for each thread, the error of the last call that failed, until cudaGetLastError
// clears it. An engine that checks it after its own launches (as PyTorch does) would take an error
// of ours for its own. So every call that we make is within the lifetime of a KeepLastError, at
// whose end
//   - an error that the calls have caused is cleared. One that CUDA does not clear, because the
//     device has failed for good, stays; every call of the engine returns it, too;
//   - if there was an error before, there is one still. It is the same one unless a call of ours
//   has
//     failed, since CUDA keeps only the last.
// Our own calls are checked by their return values, never by the last error. May be nested. The
// thread that made it destroys it. Takes two calls that only read and write memory of the thread.
class KeepLastError {
 public:
  KeepLastError() : had_error_(cudaPeekAtLastError() != cudaSuccess) {}
  ~KeepLastError() {
    if (!had_error_) static_cast<void>(cudaGetLastError());
  }
  KeepLastError(const KeepLastError&) = delete;
  KeepLastError& operator=(const KeepLastError&) = delete;

 private:
  const bool had_error_;
};

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_CUDA_LAST_ERROR_H_
