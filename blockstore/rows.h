// Rows: the rows of a range that were read, and the two merges of such reads.
#ifndef WAYMARK_BLOCKSTORE_ROWS_H_
#define WAYMARK_BLOCKSTORE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "blockstore/row_info.h"
#include "blockstore/shape.h"

namespace waymark {

// Order of the axes of what Read writes.
enum class Layout : std::uint8_t {
  kTokensLayersK,  // [T, L, K]
  kLayersTokensK,  // [L, T, K]
};

// Integer type of what Read writes. Little-endian.
enum class IdType : std::uint8_t { kUint8, kUint16, kInt16, kInt32, kInt64 };
// 1, 2, 2, 4, 8.
[[nodiscard]] std::size_t IdBytes(IdType type);

// What Read writes over a missing row. Validity is in the infos, never in the fill.
enum class Fill : std::uint8_t {
  kMinusOne,  // every id -1 (all bits set in the unsigned types)
  kZeros,     // every id 0
  kArange,    // ids 0, 1, ..., K - 1 in every layer: distinct, as padding of trainers wants
};

// How rows are to be written out.
struct ReadSpec {
  Layout layout = Layout::kTokensLayersK;
  IdType id_type = IdType::kInt16;
  Fill fill = Fill::kMinusOne;
};

// Owns the rows [first, first + size()) of one sequence: ids as the store keeps them, and an info
// each. A value: copy it, move it; const access from any thread.
struct Rows {
  RoutingShape shape;             // num_layers and layer_ids change in JoinLayers
  std::int64_t first = 0;         // position of rows[0] in the sequence
  std::vector<RowInfo> infos;     // one a row
  std::vector<std::uint8_t> ids;  // size() * shape.row_bytes(), token-major; missing rows are zero
  // Whether the K ids of every layer stand in the order that the router gave. Not after a code that
  // keeps none, nor where some of the rows that were merged did not.
  bool ordered = true;

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(infos.size()); }
  [[nodiscard]] std::int64_t last() const { return first + size(); }
  // The stored bytes of row `index` (0 = position `first`). REQUIRES: 0 <= index < size().
  [[nodiscard]] std::span<const std::uint8_t> row(std::int64_t index) const;
  [[nodiscard]] std::vector<CoverageRun> Coverage() const { return CoverageOf(infos, first); }

  // Writes all rows as `spec` says to `out`. InvalidArgument unless out.size() is exactly
  // size() * row_ids * IdBytes(id_type), and every id fits the type.
  [[nodiscard]] absl::Status Write(const ReadSpec& spec, std::span<std::uint8_t> out) const;
};

// InvalidArgument naming `name`, field, rule and value, unless the shape is one, positions are
// below 2^31, and there are as many ids as infos. Everything below that takes Rows checks them so.
[[nodiscard]] absl::Status CheckRows(const std::string& name, const Rows& rows);

// The only merge of two reads of one sequence: of each position, the first valid row wins; where
// neither is valid, the first reason other than "never written" stays. Covers both ranges, and
// "never written" between them. Serves preempt and resume, disaggregated prefill, sliding windows,
// turns. InvalidArgument unless both have the same layers, K and E (pages may differ: the result
// has those of `a`), positions below 2^31, and as many ids as infos.
[[nodiscard]] absl::StatusOr<Rows> Join(const Rows& a, const Rows& b);

// Pipeline stages, in order, to rows of all layers. A row is valid where every stage has it from
// the same step; where a stage misses it, its reason stays; unequal steps are missing (not
// captured). Comes before Join. InvalidArgument unless all stages have the same range, K, E, and
// the layer ids increase from stage to stage (stages without layer ids are numbered through).
[[nodiscard]] absl::StatusOr<Rows> JoinLayers(std::span<const Rows* const> stages);

// Writes `infos.size()` rows that lie at `source(i)` (row_bytes each; null = missing) to `out` as
// `spec` says. The one place where rows change type and layout. REQUIRES: out holds them all.
void WriteRows(const RoutingShape& shape, std::span<const std::uint8_t* const> sources,
               const ReadSpec& spec, std::span<std::uint8_t> out);
// InvalidArgument when ids of `shape` do not fit `type`, or `bytes` is not what `rows` rows take.
[[nodiscard]] absl::Status CheckReadSpec(const RoutingShape& shape, std::int64_t rows,
                                         const ReadSpec& spec, std::size_t bytes);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_ROWS_H_
