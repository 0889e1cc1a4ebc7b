// Conventions: what the rows, columns and ids of an array mean, which its bytes do not contain.
// ToRows turns an array into rows by them, FromRows turns rows into an array. Any thread.
#ifndef WAYMARK_ADAPTERS_FORMATS_CONVENTIONS_H_
#define WAYMARK_ADAPTERS_FORMATS_CONVENTIONS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "adapters/formats/routing_array.h"
#include "blockstore/rows.h"

namespace waymark::formats {

// Which tokens have a row in the array.
enum class RowCount : std::uint8_t {
  kTokensMinusOne,  // all but the last token, which was sampled and never an input
  kTokens,          // all tokens; the row of the last one is a placeholder and is ignored
};

// Which layers have a column in the array.
enum class LayerAxis : std::uint8_t {
  kMoeLayers,  // the MoE layers
  kAllLayers,  // every layer of the model; the columns of layers without experts are ignored
};

// The ids that mark a missing row. They fill all K ids of every layer: one value, or for kArange
// 0, 1, ..., K - 1.
enum class Sentinel : std::uint8_t { kNone, kMinusOne, k255, k65535, kZeros, kArange };

// "none", "-1", "255", "65535", "zeros", "arange". Static storage.
[[nodiscard]] std::string_view SentinelName(Sentinel sentinel);
// The k-th id of a layer of a missing row; 0 for kNone.
[[nodiscard]] std::int64_t SentinelId(Sentinel sentinel, std::int64_t k);

// How an array is to be read or written. Plain data.
struct Conventions {
  RowCount rows = RowCount::kTokensMinusOne;
  LayerAxis layers = LayerAxis::kMoeLayers;
  Sentinel sentinel = Sentinel::kNone;
};

// Facts of the model that no array contains. A value.
struct Model {
  std::int32_t num_experts = 0;          // E; 0: unknown
  std::vector<std::int32_t> moe_layers;  // the model's numbers of its MoE layers, increasing;
                                         // empty: unknown
  std::int32_t num_layers = 0;           // number of all layers; 0: unknown
};

// The result of ToRows. `notes` are sentences for people on rows of the array that were left out or
// are missing; empty if there are none.
struct RowsAndNotes {
  Rows rows;
  std::vector<std::string> notes;
};

// The rows of `array`, numbered from position `first`. What an array does not say is unknown: the
// provenance of rows, the version of valid ones (kUnknownVersion; their step is 0), and why a row
// that is the sentinel in every layer is missing (not told). One that is the sentinel in some
// layers is missing (not captured); one with an id twice in a layer is missing (invalid id). The
// last two kinds are noted.
//
// Nothing is guessed. InvalidArgument naming the argument, the rule and the value: E is unknown;
// all layers have a column and the MoE layers are unknown; the dtype cannot hold the sentinel; the
// sentinel could be a route (zeros if K = 1, 255 if K = 1 and E > 255, arange always); an id is not
// in [0, E) and not the sentinel; a column repeats an id in every row, as no MoE layer does.
// ResourceExhausted if the rows exceed the limits.
[[nodiscard]] absl::StatusOr<RowsAndNotes> ToRows(const RoutingArray& array,
                                                  const Conventions& conventions,
                                                  const Model& model, std::int64_t first,
                                                  const Limits& limits = {});

// The result of FromRows. `notes` are sentences for people on what the array does not preserve.
struct ArrayAndNotes {
  RoutingArray array;  // `first` is set
  std::vector<std::string> notes;
};

// The array of `rows`. Missing rows, and the row of the last token with RowCount::kTokens, are
// filled with the sentinel. InvalidArgument if CheckRows rejects the rows, the dtype cannot hold
// every id and the sentinel, or all layers get a column and model.num_layers is unknown or not
// above the last layer of the rows. FailedPrecondition if a row must be filled and the sentinel is
// kNone. ResourceExhausted if the array exceeds the limits.
[[nodiscard]] absl::StatusOr<ArrayAndNotes> FromRows(const Rows& rows,
                                                     const Conventions& conventions,
                                                     const Model& model, Dtype dtype,
                                                     const Limits& limits = {});

// The smallest E that `array` allows: one more than its greatest id, at least top_k and at most
// 65535. The sentinel of `conventions`, and columns of layers without experts, are ignored.
[[nodiscard]] std::int32_t LeastExperts(const RoutingArray& array, const Conventions& conventions,
                                        const Model& model);

}  // namespace waymark::formats

#endif  // WAYMARK_ADAPTERS_FORMATS_CONVENTIONS_H_
