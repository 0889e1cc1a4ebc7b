// Capture, pack, poison and gather on a CUDA device: the calls of capture_ids.h and pack_rows.h,
// and their inverse, launched on the caller's stream.
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

// PoisonRows: sets rows [0, rows) of every layer to -1. `data`: [num_layers, *, top_k] of int16,
// with `layer_stride` ids from one layer to the next.
int PoisonRowsOnCuda(std::int16_t* data, std::ptrdiff_t layer_stride, std::int32_t num_layers,
                     std::int32_t top_k, std::int64_t rows, CUstream_st* stream);

// The arguments of PackRowsOnCuda.
struct CudaPack {
  // top_k at most 1000, num_layers at most 2^20.
  RowShape shape;
  // Row r of the view is row r of the forward. kind: kInt16, kInt32 or kInt64. Any strides; fast if
  // the ids of a row and layer have no gaps and begin at a multiple of their size.
  IdsView ids;
  // Rows [first_row, first_row + rows) of the view are packed: with sequence parallelism, the rows
  // of this rank.
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  // Rows [0, written_rows) of every layer are -1 afterwards, whether they were packed or not; other
  // rows are not written. REQUIRES: 0, or kind kInt16 and a view whose ids do not overlap.
  std::int64_t written_rows = 0;
  // Out: row first_row + i at packed + i * shape.row_bytes(); unspecified bytes for a row with a
  // fault. The address is a multiple of shape.id_bytes(). Ignored if rows is 0.
  std::uint8_t* packed = nullptr;
  // Out: [rows], as PackRows sets them. Ignored if rows is 0.
  RowVerdict* verdicts = nullptr;
  // Null, or [rows]: the slot of each packed row, copied unchecked to `packed_slots`, [rows], so
  // that one copy to the host can include them. Addresses are multiples of 8; ignored if rows is 0.
  // REQUIRES: no output overlaps `slots`.
  const std::int64_t* slots = nullptr;
  std::int64_t* packed_slots = nullptr;
  // Null, or [num_layers] each, added to: of the packed rows those in which the layer has an id of
  // -1; and others in which it has one out of range, or the same id twice.
  std::uint32_t* silent = nullptr;
  std::uint32_t* invalid = nullptr;
};
// PackRows and PoisonRows in one pass: every id is read once and overwritten once.
int PackRowsOnCuda(const CudaPack& pack, CUstream_st* stream);

// Order of the axes of the output of GatherRowsOnCuda; C order, without gaps.
enum class RowsOrder : std::uint8_t {
  kTokensLayersK,  // [rows, L, K]
  kLayersTokensK,  // [L, rows, K]
};

// The ids that are written for a missing row.
enum class MissingFill : std::uint8_t {
  kMinusOne,  // all bits set
  kZeros,
  kArange,  // 0, 1, ..., K - 1 in every layer
};

// The arguments of GatherRowsOnCuda.
struct CudaGather {
  RowShape shape;  // as above
  // Packed rows in pages of `page_rows`: row s of page p at pages + p * page_stride +
  // s * shape.row_bytes(). `pages` and `page_stride` (bytes): multiples of shape.id_bytes().
  const std::uint8_t* pages = nullptr;
  std::ptrdiff_t page_stride = 0;
  std::int32_t page_rows = 0;
  // Row i of the result is row (first_row + i) % page_rows of the page page_list[(first_row + i) /
  // page_rows]. The rows of a page below 0 are missing. Null: page i is page i, which makes rows
  // that lie one behind another of pages of any size.
  const std::int32_t* page_list = nullptr;
  // Null: no row of a page is missing. Else [rows] bytes: row i of the result is missing if byte i
  // is 0.
  const std::uint8_t* valid = nullptr;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  // Out: row i as ids of `kind`, `fill` if it is missing; the address is a multiple of the size of
  // an element. REQUIRES:
  // ids fit `kind`; `out` overlaps no page.
  void* out = nullptr;
  IdKind kind = IdKind::kInt16;
  RowsOrder order = RowsOrder::kTokensLayersK;
  MissingFill fill = MissingFill::kMinusOne;
};
// The inverse of PackRows: rows that are found by a list of pages become one tensor of ids.
int GatherRowsOnCuda(const CudaGather& gather, CUstream_st* stream);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_PACK_CUDA_H_
