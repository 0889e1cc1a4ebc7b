// FillRouterTensors: the expert ids that the routers of one rank replay, [local rows, K] a layer.
// GatherOf: the same of packed rows, in a device's memory.
//
// Straight from where the rows are in memory: nothing is copied first.
#ifndef WAYMARK_ADAPTERS_TRAINER_FILL_H_
#define WAYMARK_ADAPTERS_TRAINER_FILL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/shape.h"
#include "kernels/pack_cuda.h"

namespace waymark {

// Tokens of one sequence whose rows are equally far apart: position + i is in row + i * row_stride.
struct RowSegment {
  std::int32_t sequence = 0;  // index in RowPlan::lengths
  std::int64_t position = 0;  // of the first token in its sequence
  std::int64_t count = 0;     // tokens, at least 1
  std::int64_t row = 0;       // local row of the first token
  std::int64_t row_stride = 1;
};

// Which tokens the rows of one rank's MoE layers belong to, for one micro-batch: what a trainer's
// layout makes of the lengths (waymark.trainer.Layout).
struct RowPlan {
  std::int64_t rows = 0;              // of this rank, padding included
  std::vector<std::int64_t> lengths;  // the tokens of each sequence of the micro-batch
  // The tokens of this rank, by sequence and then by position. Rows in no segment are padding.
  std::vector<RowSegment> segments;
};

// The token of a local row.
struct TokenPlace {
  std::int32_t sequence = -1;  // -1: the row is padding
  std::int64_t position = -1;
  friend bool operator==(const TokenPlace&, const TokenPlace&) = default;
};

// Rows [first, first + count) of one sequence in memory of the caller; row 0 is its first token's.
struct RowsView {
  const RoutingShape* shape = nullptr;  // page_tokens is not used
  std::int64_t first = 0;
  std::int64_t count = 0;
  // Row i: shape->row_bytes() bytes at ids + i * row_stride, [L][K] as the store keeps them.
  const std::uint8_t* ids = nullptr;
  std::ptrdiff_t row_stride = 0;
  // [count]: why a row is missing; kNone: it is valid. Strided, because infos have it too.
  const std::uint8_t* reasons = nullptr;
  std::ptrdiff_t reason_stride = 1;
};
// The view of rows; they must outlive it.
[[nodiscard]] RowsView ViewOf(const Rows& rows);

// What rows without a route get: padding, the last token, missing rows.
enum class RouteFill : std::uint8_t {
  kSpread,    // K experts, others in each such row of the rank and in each tensor (spread.h)
  kMinusOne,  // -1, which no router chooses and no dispatcher takes
};

// The tensors of the routers, in memory of the caller.
struct RouterTensors {
  IdType id_type = IdType::kInt64;
  RouteFill fill = RouteFill::kSpread;
  // [layers][rows][K] ids of id_type, C order: the tensor of layer i is contiguous.
  std::span<std::uint8_t> ids;
  // ids is [rows][layers][K] instead, of the type in which rows are stored, which id_type must be:
  // what waymark.trainer.expand makes the tensors of. The fill must be kSpread.
  bool packed = false;
  // [rows]: 1: the ids of the row are the engine's; 0: the fill. Empty: not written.
  std::span<std::uint8_t> mask;
};

struct FillOptions {
  // Whether a source may have fewer rows than its sequence has tokens but one; the others are then
  // missing (never written).
  bool partial = false;
};

// What the rows of a rank got. replayed + padding + no_row + missing of all reasons = rows.
struct FillReport {
  std::int64_t replayed = 0;  // rows with the engine's ids
  std::int64_t padding = 0;   // rows of no token
  std::int64_t no_row = 0;    // last tokens: sampled, but never an input of the engine
  std::array<std::int64_t, kNumReasons> missing = {};  // by reason; [0] is 0
  TokenPlace first_missing;                            // {-1, -1}: none is missing
};

// Fills the tensors of routers `layers` (the model's numbers, counted from 0; distinct, in the
// order of the tensors) with the rows of `plan`. sources[i]: of sequence i. Rows are checked as
// the tensors take them: an id out of range, or twice in a layer, makes the row missing (invalid
// id).
//
// InvalidArgument, naming the argument, the rule and the value: a segment of no rows of the plan;
// another number of sources than sequences; sources that differ in K or E; a layer that a source
// does not have; without options.partial, a source that does not have exactly the rows of its
// sequence's tokens, with or without the last; a size of `out`. On an error nothing is written.
//
// Any thread. Memory, for each row of the plan: 9 bytes, and 8 more for each further run of layers
// that are not adjacent in a source. Throws std::bad_alloc, and may then have written a part.
[[nodiscard]] absl::StatusOr<FillReport> FillRouterTensors(const RowPlan& plan,
                                                           std::span<const RowsView> sources,
                                                           std::span<const std::int32_t> layers,
                                                           const RouterTensors& out,
                                                           const FillOptions& options = {});

// The type in which ids of `num_experts` experts are stored.
[[nodiscard]] constexpr IdType StoredIdType(std::int32_t num_experts) {
  return num_experts <= 256 ? IdType::kUint8 : IdType::kUint16;
}

// Packed rows (RouterTensors::packed) become the tensors where they are: they cross the bus as they
// are stored, a byte an id up to 256 experts, and are widened by kernels::GatherRowsOnCuda: one of
// its calls. In host memory numpy does it.
//
// Widens `rows` packed rows of `shape`, [rows][L][K] of StoredIdType, to [L][rows][K] of id_type in
// C order. kMinusOne: rows whose mask is 0 get it; kSpread: they keep what they have. All memory is
// a device's. InvalidArgument, naming the argument, the rule and the value: numbers out of range,
// an id_type that does not hold every id. Reads no memory.
[[nodiscard]] absl::StatusOr<kernels::CudaGather> GatherOf(const RoutingShape& shape,
                                                           std::int64_t rows, const void* packed,
                                                           const void* mask, void* ids,
                                                           IdType id_type, RouteFill fill);

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_FILL_H_
