// Capture, pack, poison and gather on a CUDA device: capture_ids.h's, pack_rows.h's and
// unpack_rows.h's calls, launched on the caller's stream.
//
// Every call checks its arguments, then makes one launch on `stream`, which belongs to the current
// device (null: its legacy default stream), or none where there is nothing to do. No allocation, no
// synchronisation, no call that a stream in capture forbids: all of it can be recorded into a
// graph. Pointers are addresses that the device can reach; they are used when the launch runs, in
// stream order, and the structs are not kept. Any thread.
//
// Returns the cudaError_t of the launch: 0 (cudaSuccess); 1 (cudaErrorInvalidValue) where an
// argument is not as said here, and then nothing was launched; else what the runtime said.
// Offsets are computed in 64 bits.
#ifndef WAYMARK_KERNELS_PACK_CUDA_H_
#define WAYMARK_KERNELS_PACK_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/ids_view.h"
#include "kernels/pack_rows.h"
#include "kernels/unpack_rows.h"

struct CUstream_st;  // what CUDA's cudaStream_t and CUstream point to

namespace waymark::kernels {

// CaptureIds: one layer's ids into its view, `view`, C order [rows, top_k] of int16. The first
// top_k columns of `ids`; one that int16 cannot hold becomes kUnrepresentableId. Fast where the ids
// lie as the view has them, without gaps, and both begin at a multiple of 16 bytes. REQUIRES:
// ids.kind is signed; source and view do not overlap.
int CaptureIdsOnCuda(const IdsView& ids, std::int64_t rows, std::int32_t top_k, std::int16_t* view,
                     CUstream_st* stream);

// PoisonRows: -1 over rows [0, rows) of every layer of `data`, an array [num_layers, *, top_k]
// whose layers are `layer_stride` ids apart.
int PoisonRowsOnCuda(std::int16_t* data, std::ptrdiff_t layer_stride, std::int32_t num_layers,
                     std::int32_t top_k, std::int64_t rows, CUstream_st* stream);

// What PackRowsOnCuda reads and writes.
struct CudaPack {
  // top_k at most 1000, num_layers at most 2^20.
  RowShape shape;
  // Row r of the view is row r of the forward. kind: kInt16, kInt32 or kInt64. Strides may be any;
  // it is fast where a layer's ids of a row have no gaps and begin at a multiple of their size.
  IdsView ids;
  // Rows [first_row, first_row + rows) of the view are packed: a sequence-parallel rank's own.
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  // Rows [0, written_rows) of every layer are -1 afterwards, packed or not, and whatever they hold;
  // others are left alone. REQUIRES: 0, or kind kInt16 and a view whose ids do not overlap.
  std::int64_t written_rows = 0;
  // Out: row first_row + i at packed + i * shape.row_bytes(). A row with a fault has unspecified
  // bytes. A multiple of shape.id_bytes(). Not looked at for 0 rows.
  std::uint8_t* packed = nullptr;
  // Out: [rows], one each, as PackRows sets them. Not looked at for 0 rows.
  RowVerdict* verdicts = nullptr;
  // Null, or [rows], the slot of each packed row, whatever it is: copied to `packed_slots`, [rows],
  // where one copy to the host can bring it with the rows. Multiples of 8; not looked at for 0
  // rows. REQUIRES: what is written does not overlap `slots`.
  const std::int64_t* slots = nullptr;
  std::int64_t* packed_slots = nullptr;
  // Null, or [num_layers] each, added to: what LayerFaults counts, of the packed rows.
  std::uint32_t* silent = nullptr;
  std::uint32_t* invalid = nullptr;
};
// PackRows and PoisonRows in one pass: every id is read once, and its place written once.
int PackRowsOnCuda(const CudaPack& pack, CUstream_st* stream);

// Order of the axes of what GatherRowsOnCuda writes; C order, without gaps.
enum class RowsOrder : std::uint8_t {
  kTokensLayersK,  // [rows, L, K]
  kLayersTokensK,  // [L, rows, K]
};

// What GatherRowsOnCuda reads and writes.
struct CudaGather {
  RowShape shape;  // as above
  // Packed rows in pages of `page_rows`: row s of page p at pages + p * page_stride +
  // s * shape.row_bytes(). `pages` and `page_stride` (bytes): multiples of shape.id_bytes().
  const std::uint8_t* pages = nullptr;
  std::ptrdiff_t page_stride = 0;
  std::int32_t page_rows = 0;
  // Row i of the result is row (first_row + i) % page_rows of the page page_list[(first_row + i) /
  // page_rows]. A page below 0 is none: its rows are missing.
  const std::int32_t* page_list = nullptr;
  // Null: every row of a page is there. Else [rows] bytes: row i of the result is missing where 0.
  const std::uint8_t* valid = nullptr;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  // Out, as UnpackRows writes it: at a multiple of its elements' size. REQUIRES: ids fit `kind`; no
  // overlap with a page.
  void* out = nullptr;
  IdKind kind = IdKind::kInt16;
  RowsOrder order = RowsOrder::kTokensLayersK;
  MissingFill fill = MissingFill::kMinusOne;
};
// UnpackRows, of rows that a page list names.
int GatherRowsOnCuda(const CudaGather& gather, CUstream_st* stream);

}  // namespace waymark::kernels

#endif  // WAYMARK_KERNELS_PACK_CUDA_H_
