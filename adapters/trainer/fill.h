// FillRouterTensors: the expert ids that the routers of one rank replay, [local rows, K] a layer.
//
// Straight from where the rows are: of rows in memory and of a document of raw chunks nothing is
// copied first. Of documents and handles only this rank's rows and layers are read, as they are
// stored; rows of handles and of the set code are read before any is written.
#ifndef WAYMARK_ADAPTERS_TRAINER_FILL_H_
#define WAYMARK_ADAPTERS_TRAINER_FILL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "adapters/trainer/layout.h"
#include "blockstore/row_info.h"
#include "blockstore/rows.h"
#include "blockstore/shape.h"
#include "blockstore/wire/document.h"
#include "blockstore/wire/fetcher.h"

namespace waymark {

// Rows [first, first + count) of one sequence in memory of the caller.
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

// Rows that a fetcher gets, by handle.
struct RowsByHandle {
  wire::Fetcher* fetcher = nullptr;
  const wire::Handle* handle = nullptr;
  wire::Deadline deadline;
};

// Where the rows of one sequence are; position 0 is its first token.
using RowSource = std::variant<RowsView, const wire::Document*, RowsByHandle>;

// The tensors of the routers, in memory of the caller.
struct RouterTensors {
  IdType id_type = IdType::kInt64;
  // What rows without routing get: padding, the last token, missing rows. Megatron-Core's
  // dispatchers need distinct ids in every row, hence not kMinusOne.
  Fill fill = Fill::kArange;
  // [layers][rows][K] ids of id_type, C order: the tensor of layer i is contiguous.
  std::span<std::uint8_t> ids;
  // ids is [rows][layers][K] instead, of the type in which rows are stored, which id_type must be:
  // what ExpandOnHost, or a device, makes the tensors of. A row without routing is all zeros.
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
// order of the tensors) with the rows of `plan`. sources[i]: those of sequence i. Rows are checked
// as the tensors take them: an id out of range, or twice in a layer, makes the row missing (invalid
// id).
//
// InvalidArgument, naming the argument, the rule and the value: another number of sources than
// sequences; sources that differ in K or E; a layer that a source does not have; without
// options.partial, a source that does not have exactly the rows of its sequence's tokens, with or
// without the last; a size of `out`. Errors of Document::ReadRows and Fetcher::Fetch. On an error
// nothing is written.
//
// Any thread. Memory, for each row of the plan: 9 bytes, 8 more for each further run of layers that
// are not adjacent in a source, and 4 with raw documents; its stored ids if it is from a handle or
// of the set code. Throws std::bad_alloc, and may then have written a part.
[[nodiscard]] absl::StatusOr<FillReport> FillRouterTensors(const RowPlan& plan,
                                                           std::span<const RowSource> sources,
                                                           std::span<const std::int32_t> layers,
                                                           const RouterTensors& out,
                                                           const FillOptions& options = {});

}  // namespace waymark

#endif  // WAYMARK_ADAPTERS_TRAINER_FILL_H_
