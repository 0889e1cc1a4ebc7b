// Rows: the rows that were read of one sequence, and the two functions that merge them.
#ifndef WAYMARK_BLOCKSTORE_ROWS_H_
#define WAYMARK_BLOCKSTORE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/digest.h"
#include "blockstore/row_info.h"
#include "blockstore/shape.h"

namespace waymark {

// The order of axes in which rows are written out. T: tokens; L: captured layers; K: ids per layer.
enum class Layout : std::uint8_t {
  kTokensLayersK,  // [T, L, K]
  kLayersTokensK,  // [L, T, K]
};

// The integer type in which ids are written out, little-endian.
enum class IdType : std::uint8_t { kUint8, kUint16, kInt16, kInt32, kInt64 };
// Bytes of one id: 1, 2, 2, 4 or 8.
[[nodiscard]] std::size_t IdBytes(IdType type);
// How many experts integers of so many bytes can name, at most 65536: 256 in uint8, 32768 in int16.
// The one rule of every array of ids, on its way in and out: a type that holds fewer than the shape
// has is refused, because what wrote the array has cut the ids of the others.
[[nodiscard]] std::int32_t ExpertsHeld(std::size_t bytes, bool is_signed);
[[nodiscard]] std::int32_t ExpertsHeld(IdType type);
// "uint8 holds 256 experts", for messages.
[[nodiscard]] std::string ExpertsHeldText(std::size_t bytes, bool is_signed);

// The ids that are written for a missing row. They do not mark it as missing: RowInfo does.
enum class Fill : std::uint8_t {
  kMinusOne,  // every id is -1 (all bits set in unsigned types)
  kZeros,     // every id is 0
};

// How to write rows out.
struct ReadSpec {
  Layout layout = Layout::kTokensLayersK;
  IdType id_type = IdType::kInt16;
  Fill fill = Fill::kMinusOne;
};

// Rows of a page that no step wrote here, and that a tier may have (blockstore/wire/tier.h).
struct PageName {
  std::int64_t begin = 0;     // the rows for which it was made, by position: [begin, end), all of
  std::int64_t end = 0;       // one page. Other rows of the page may be of other weights
  Digest128 name;             // of the page in the tier
  std::uint64_t version = 0;  // of the weights, which its rows get
  bool lost = false;          // its rows that were lost (capacity) are asked for, too
  bool unnamed = false;       // the weights have no name that other engines know

  friend bool operator==(const PageName&, const PageName&) = default;
};

// Rows [first, first + size()) of one sequence, with ids as the store keeps them and a RowInfo per
// row. A value that owns its memory; any number of threads may read it.
struct Rows {
  RoutingShape shape;             // JoinLayers changes num_layers and layer_ids
  std::int64_t first = 0;         // position in the sequence of row 0
  std::vector<RowInfo> infos;     // one per row
  std::vector<std::uint8_t> ids;  // [size(), L, K], size() * shape.row_bytes(); missing rows are 0
  // Whether the K ids of every layer are in the router's order. False after a code that does not
  // keep the order, and after a merge with rows for which it is false.
  bool ordered = true;
  // Where missing rows may be found, in order, each row by one name. Join keeps them; JoinLayers
  // and documents do not.
  std::vector<PageName> names = {};

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(infos.size()); }
  [[nodiscard]] std::int64_t last() const { return first + size(); }
  // The ids of row `index` as stored; index 0 is position `first`. REQUIRES: 0 <= index < size().
  [[nodiscard]] std::span<const std::uint8_t> row(std::int64_t index) const;
  [[nodiscard]] std::vector<CoverageRun> Coverage() const { return CoverageOf(infos, first); }

  // Writes all rows to `out` in the layout, type and fill of `spec`. InvalidArgument unless
  // out.size() is size() * shape.row_ids() * IdBytes(spec.id_type) and every id fits the type.
  [[nodiscard]] absl::Status Write(const ReadSpec& spec, std::span<std::uint8_t> out) const;
};

// Appends the names of rows [begin, end) of `rows`, by position, to those of earlier rows.
void AddNames(const Rows& rows, std::int64_t begin, std::int64_t end, std::vector<PageName>& names);

// OK if the shape is valid, positions are below 2^31, and there are as many rows of ids as infos;
// otherwise InvalidArgument naming `name`, the field, the rule and the value. The functions below
// check every Rows argument in this way.
[[nodiscard]] absl::Status CheckRows(const std::string& name, const Rows& rows);

// Rows of arrays from outside: ids [T, L, K] as the store keeps them (of missing rows they are not
// looked at) and an info each; CopyRows copies both. InvalidArgument naming the array, the row and
// the rule: another number of ids, an id of a valid row that is not below E, a reason or a
// provenance that does not exist, a missing row with a step or a version.
[[nodiscard]] absl::Status CheckRowArrays(const RoutingShape& shape, std::int64_t first,
                                          std::span<const std::uint8_t> ids,
                                          std::span<const RowInfo> infos);
[[nodiscard]] absl::StatusOr<Rows> CopyRows(const RoutingShape& shape, std::int64_t first,
                                            bool ordered, std::span<const std::uint8_t> ids,
                                            std::span<const RowInfo> infos);

// Merges reads of one sequence, the earliest first. At each position the first valid row is taken;
// if there is none, the first reason that is more than "not told", or "never written", and the name
// that this read gave the row. The result covers all ranges; rows between them are never written.
// For preemption, turns, disaggregated prefill, sliding windows. InvalidArgument unless there is at
// least one read and all have the same layers, K and E; page_tokens may differ; the result has the
// first one's.
[[nodiscard]] absl::StatusOr<Rows> Join(std::span<const Rows* const> reads);

// Merges the rows of all pipeline stages, given in order, into rows of all layers. A row is valid
// if every stage has it from the same step; without steps (0), of the same version, and the caller
// vouches for the step. If a stage misses it, it is missing for the reason of the first such stage;
// if the steps differ, it is missing (not captured). Call it before Join. InvalidArgument unless
// all stages have the same range, K and E, and layer ids increase from stage to stage. The layers
// of a stage without layer ids get the numbers behind the stage before.
[[nodiscard]] absl::StatusOr<Rows> JoinLayers(std::span<const Rows* const> stages);

// Writes rows to `out` in the layout, type and fill of `spec`. row_pointers[i] points to the
// shape.row_bytes() bytes of row i; null: the row is missing. Every conversion of type and layout
// is done here. REQUIRES: `out` has the size that CheckReadSpec accepts.
void WriteRows(const RoutingShape& shape, std::span<const std::uint8_t* const> row_pointers,
               const ReadSpec& spec, std::span<std::uint8_t> out);
// InvalidArgument if the ids of `shape` do not fit spec.id_type, or if `rows` rows do not take
// exactly `bytes` bytes.
[[nodiscard]] absl::Status CheckReadSpec(const RoutingShape& shape, std::int64_t rows,
                                         const ReadSpec& spec, std::size_t bytes);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_ROWS_H_
