// Conventions: what the rows, columns and ids of an array stand for. Where formats of the same
// bytes differ, and what an array never says itself.
#ifndef WAYMARK_PLUGIN_FORMATS_CONVENTIONS_H_
#define WAYMARK_PLUGIN_FORMATS_CONVENTIONS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "blockstore/rows.h"
#include "plugin/formats/routing_array.h"

namespace waymark::formats {

// Which tokens have a row.
enum class RowCount : std::uint8_t {
  kTokensMinusOne,  // all but the last, which was sampled and never an input
  kTokens,          // the last row is a placeholder for that token, and no row
};

// Which layers have a column.
enum class LayerAxis : std::uint8_t {
  kMoeLayers,  // the MoE layers
  kAllLayers,  // every layer of the model; what stands in the columns of the others is nothing
};

// What stands where there is no row: in every id of every layer of it.
enum class Sentinel : std::uint8_t { kNone, kMinusOne, k255, k65535, kZeros, kArange };

// "none", "-1", "255", "65535", "zeros", "arange". Static storage.
[[nodiscard]] std::string_view SentinelName(Sentinel sentinel);
// The id that stands at `k` of a row that is not there; 0 where there is no sentinel.
[[nodiscard]] std::int64_t SentinelId(Sentinel sentinel, std::int64_t k);

struct Conventions {
  RowCount rows = RowCount::kTokensMinusOne;
  LayerAxis layers = LayerAxis::kMoeLayers;
  Sentinel sentinel = Sentinel::kNone;
};

// What the model is: no array says it.
struct Model {
  std::int32_t num_experts = 0;          // E; 0: not known
  std::vector<std::int32_t> moe_layers;  // numbers of the MoE layers, increasing; empty: not known
  std::int32_t num_layers = 0;           // all layers; 0: not known
};

// Rows, and what a person should know of how they came about: one sentence each, none when the
// array and the rows say the same.
struct Interpretation {
  Rows rows;
  std::vector<std::string> notes;
};

// The rows [first, ...) that `array` holds. Valid rows have step 0 and version 0. A row of the
// sentinel is missing (never written); one with the sentinel in some layers only, not captured; one
// with an id twice in a layer, invalid id; each is told. `first`: the position of the first row.
//
// Refused, never guessed (InvalidArgument naming argument, rule and value): E not known; all layers
// without the list of MoE layers; a sentinel that the dtype does not have, or that could be a route
// (0 at K = 1, 255 at K = 1 and E > 255, arange always); an id out of [0, E) that is no sentinel; a
// column that repeats an id in every row (no MoE layer routes so). ResourceExhausted beyond the
// limits.
[[nodiscard]] absl::StatusOr<Interpretation> ToRows(const RoutingArray& array,
                                                    const Conventions& conventions,
                                                    const Model& model, std::int64_t first,
                                                    const Limits& limits = {});

// An array, and what of the rows it does not hold: one sentence each.
struct Flattened {
  RoutingArray array;  // `first` is set
  std::vector<std::string> notes;
};

// The other way. InvalidArgument unless the rows are some, and the dtype has every id and the
// sentinel. FailedPrecondition when a row is missing (or the last token's row is to be there) and
// the sentinel is none; InvalidArgument for all layers when model.num_layers is not known or not
// above the last layer.
[[nodiscard]] absl::StatusOr<Flattened> FromRows(const Rows& rows, const Conventions& conventions,
                                                 const Model& model, Dtype dtype,
                                                 const Limits& limits = {});

// One more than the greatest id of `array`, at least top_k, at most 65535: the least E that could
// be. Ids that are the sentinel of `conventions`, and columns that are no MoE layer, do not count.
[[nodiscard]] std::int32_t LeastExperts(const RoutingArray& array, const Conventions& conventions,
                                        const Model& model);

}  // namespace waymark::formats

#endif  // WAYMARK_PLUGIN_FORMATS_CONVENTIONS_H_
