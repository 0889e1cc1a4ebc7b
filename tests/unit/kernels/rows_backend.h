// RowsBackend: an implementation of pack_cuda.h, as its suite sees it.
//
// A test program is the suite (rows_suite.cc) and one definition of TheRowsBackend(). What a call
// must give is what the host forms give (CaptureIds, PackRows, PoisonRows), and for GatherRows what
// the suite says.
#ifndef WAYMARK_TESTS_UNIT_KERNELS_ROWS_BACKEND_H_
#define WAYMARK_TESTS_UNIT_KERNELS_ROWS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "kernels/pack_cuda.h"

namespace waymark::kernels {

class RowsBackend {
 public:
  virtual ~RowsBackend() = default;

  // For messages: "emulated", "cuda".
  [[nodiscard]] virtual std::string name() const = 0;
  // Brings host memory to where the calls can reach it, as far from a multiple of 256 bytes as it
  // was; the calls take addresses in what comes back. TakeBack() undoes it: the host's bytes are
  // then what the calls have made of them. Fails the test if something beside them was written.
  virtual std::uint8_t* Bring(std::uint8_t* host, std::size_t bytes) = 0;
  virtual void TakeBack() = 0;

  // The calls of pack_cuda.h. `random`: for orders that are free.
  virtual int CaptureIds(const IdsView& ids, std::int64_t rows, std::int32_t top_k,
                         std::int16_t* view, std::mt19937_64& random) = 0;
  virtual int PackRows(const PackLaunch& pack, std::mt19937_64& random) = 0;
  virtual int GatherRows(const CudaGather& gather, std::mt19937_64& random) = 0;
};

// Defined once in each test program: the backend; null: every test skips, for the reason given.
RowsBackend* TheRowsBackend(std::string* why_none);

}  // namespace waymark::kernels

#endif  // WAYMARK_TESTS_UNIT_KERNELS_ROWS_BACKEND_H_
