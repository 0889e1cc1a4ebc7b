// Capture, pack and gather on a CUDA device: the calls of capture_ids.h and pack_rows.h, and their
// inverse, launched on the caller's stream.
//
// Every call checks its arguments, then makes one launch on `stream`, which belongs to the current
// device (null: its legacy default stream), or none if there is nothing to do. It allocates nothing
// and synchronises nothing, so it can be captured into a CUDA graph. Pointers are addresses that
// the device can access; they are used when the launch runs, in stream order, and the structs are
// not kept. Any thread.
//
// Returns the cudaError_t of the launch: 0 (cudaSuccess); 1 (cudaErrorInvalidValue) if an argument
// breaks a rule of this header, and then nothing was launched; else the error of the runtime.
// Leaves the thread's last error as it was (cuda_last_error.h).
// Offsets are computed in 64 bits.
#ifndef WAYMARK_KERNELS_PACK_CUDA_H_
#define WAYMARK_KERNELS_PACK_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/ids_view.h"
#include "kernels/pack_rows.h"

struct CUstream_st;  // what CUDA's cudaStream_t and CUstream point to

namespace waymark::kernels {

// CaptureIds: copies the first top_k columns of the ids of one layer to `view`, C order [rows,
// top_k] of int16; an id that is below -1 or that int16 cannot hold becomes kUnrepresentableId.
// Fast if the ids have no gaps and both arrays begin at a multiple of 16 bytes. REQUIRES: ids.kind
// is signed; input and view do not overlap.
int CaptureIdsOnCuda(const IdsView& ids, std::int64_t rows, std::int32_t top_k, std::int16_t* view,
                     CUstream_st* stream);

// The arguments of PackRowsOnCuda.
struct PackLaunch {
  // top_k at most 1000, num_layers at most 2^20.
  RowShape shape;
  // [num_layers, *, top_k] of int16, with `layer_stride` ids from one layer to the next: row r is
  // row r of the forward. Fast if each layer begins at a multiple of 16 bytes.
  std::int16_t* view = nullptr;
  std::ptrdiff_t layer_stride = 0;
  // Rows [0, rows) of the view are packed.
  std::int64_t rows = 0;
  // Rows [0, written_rows) of every layer are -1 afterwards, whether they were packed or not; other
  // rows are not written.
  std::int64_t written_rows = 0;
  // Out: row i at packed + i * shape.row_bytes(); unspecified bytes for a row with a fault. The
  // address is a multiple of shape.id_bytes(). Ignored if rows is 0.
  std::uint8_t* packed = nullptr;
  // Out: [rows], as PackRows sets them. Ignored if rows is 0.
  RowVerdict* verdicts = nullptr;
  // Null, or [num_layers] each, added to: of the packed rows those in which every id of the layer
  // is -1; and others in which it has one out of range, or the same id twice.
  std::uint32_t* silent = nullptr;
  std::uint32_t* invalid = nullptr;
};
// PackRows and PoisonRows in one pass: every id is read once and overwritten once.
int PackRowsOnCuda(const PackLaunch& pack, CUstream_st* stream);

// The arguments of GatherRowsOnCuda.
struct CudaGather {
  RowShape shape;  // as above
  // Packed rows, one behind the other, at a multiple of shape.id_bytes().
  const std::uint8_t* packed = nullptr;
  // Null: no row is missing. Else [rows] bytes: row i is missing if byte i is 0.
  const std::uint8_t* valid = nullptr;
  std::int64_t rows = 0;
  // Out: [L, rows, K] in C order, ids of `kind`, -1 (all bits set) where a row is missing; the
  // address is a multiple of the size of an id. REQUIRES: ids fit `kind`; `out` overlaps no input.
  void* out = nullptr;
  IdKind kind = IdKind::kInt16;
};
// The inverse of PackRows: packed rows become one tensor of ids.
int GatherRowsOnCuda(const CudaGather& gather, CUstream_st* stream);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_PACK_CUDA_H_
